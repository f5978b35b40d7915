# What the machines' first boots share; bash, sourced.

say() {
    echo "[carme] $*"
}

# Names of the machines, beside what the image has in /etc/hosts.
hosts() {
    local marked
    marked=$(sed '/^# carme: begin/,/^# carme: end/d' /etc/hosts)
    {
        printf '%s\n' "$marked"
        echo "# carme: begin"
        cat /etc/carme/hosts
        echo "# carme: end"
    } >/etc/hosts.new
    cat /etc/hosts.new >/etc/hosts
    rm /etc/hosts.new
}

# Root alone asks the metadata service.
metadata() {
    systemctl enable nftables
    systemctl restart nftables
}

# People, with the same numbers everywhere, and the group of those who may use the hub; the hub's own user.
people() {
    getent group gpu-users >/dev/null || groupadd --gid 20000 gpu-users
    local name uid
    while read -r name uid; do
        getent passwd "$name" >/dev/null ||
            useradd --uid "$uid" --user-group --groups gpu-users --no-create-home --home-dir "/shared/home/$name" \
                --shell /bin/bash "$name"
    done </etc/carme/users
}

hub_user() {
    getent passwd carme-hub >/dev/null ||
        useradd --system --uid 950 --user-group --home-dir /var/lib/carme-hub --shell /usr/sbin/nologin carme-hub
}

# mount_from CONTROLLER: homes, images, Slurm's settings and, for a moment, the key of munge.
mount_from() {
    local folder
    for folder in /shared /etc/slurm; do
        mkdir -p "$folder"
        grep -q " $folder nfs " /etc/fstab || echo "$1:$folder $folder nfs _netdev,nofail,x-systemd.automount 0 0" >>/etc/fstab
        until mountpoint -q "$folder" || mount -t nfs "$1:$folder" "$folder"; do
            say "waiting for $folder of $1"
            sleep 5
        done
    done
    until [ -s /etc/slurm/slurm.conf ]; do
        say "waiting for slurm.conf of $1"
        sleep 5
    done
    local key
    key=$(mktemp -d)
    until mount -t nfs -o ro "$1:/etc/munge" "$key"; do sleep 5; done
    install -o munge -g munge -m 400 "$key/munge.key" /etc/munge/munge.key
    umount "$key"
    rmdir "$key"
    systemctl enable munge
    systemctl restart munge
}

# mount_with_acls CONTROLLER FOLDER: by version 3 of NFS, whose clients have POSIX ACLs; those of version 4 have not.
mount_with_acls() {
    grep -q " $2 nfs " /etc/fstab || echo "$1:$2 $2 nfs vers=3,_netdev,nofail 0 0" >>/etc/fstab
    mkdir -p "$2"
    until mountpoint -q "$2" || mount -t nfs -o vers=3 "$1:$2" "$2"; do
        say "waiting for $2 of $1"
        sleep 5
    done
}

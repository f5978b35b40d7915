# What each machine is at its first boot, as user data of cloud-init: a cluster with Debian's Slurm, and a hub that its own setup
# sets up. Of no cloud in particular, and without a provider, so it can be rendered anywhere.
#
# No secret of the cluster is in user data: the controller makes the key of munge and the password of slurmdbd's database, and the
# other machines fetch the key over NFS as root. The hub's has the hashes of passwords. Each machine lets root alone ask the cloud's
# metadata service, which gives user data to whoever asks.

locals {
  users = [for name in sort(keys(var.users)) : { name = name, uid = var.users[name].uid }]
  gres  = var.gpu_type != "" && var.gpus_per_node > 0 ? "gpu:${var.gpu_type}:${var.gpus_per_node}" : ""

  # docs/howto/real-site.md has the reasons of the settings, the packages and the user; a test compares.
  slurm_conf = templatefile("${path.module}/files/slurm.conf.tftpl", {
    cluster            = var.cluster
    controller         = var.controller
    controller_address = var.addresses[var.controller]
    nodes              = [for name in var.nodes : { name = name, address = var.addresses[name] }]
    cpus               = var.cpus
    memory_mib         = floor(var.memory_mib * 0.93)
    gres               = local.gres
    gpu_type           = var.gpu_type
    scratch            = local.scratch
  })
  gres_conf = local.gres == "" ? "" : join("", [
    "Name=gpu Type=${var.gpu_type} File=/dev/nvidia",
    var.gpus_per_node == 1 ? "0" : "[0-${var.gpus_per_node - 1}]",
    "\n",
  ])
  job_submit = replace(
    file("${path.module}/../../../share/carme_hub/slurm/job_submit.lua"),
    "local DEFAULT_GPU_TYPE = nil",
    var.gpu_type == "" ? "local DEFAULT_GPU_TYPE = nil" : "local DEFAULT_GPU_TYPE = \"${var.gpu_type}\"",
  )
  answers = merge({
    host              = var.host
    web_server        = var.web_server
    hub_address       = var.addresses[var.hub]
    group             = "gpu-users"
    submit_via        = "sudo"
    image             = "/shared/images/default"
    image_store       = "/shared/images"
    container_runtime = "bubblewrap"
    }, var.web_server == "nginx" ? {
    tls_certificate = "/etc/ssl/carme-hub.pem"
    tls_key         = "/etc/ssl/private/carme-hub.key"
  } : {}, var.answers)
  # What the answers ask of the machines: folders that users share, a folder below /shared, and scratch folders on nodes.
  folders = lookup(local.answers, "folders", "")
  scratch = lookup(local.answers, "scratch", "")
  sweep_files = [for name in ["carme-stage-out.service", "carme-stage-out.timer"] : {
    path    = "/etc/systemd/system/${name}"
    content = replace(file("${path.module}/../../../share/carme_hub/systemd/${name}"), "/opt/carme-hub/node", "/shared/node/libexec")
  } if local.scratch != ""]
  scratch_packages = [for name in ["rclone", "fuse3"] : name if local.scratch != ""]

  # What all machines have.
  hosts = join("", [for name in sort(keys(var.addresses)) : "${var.addresses[name]} ${name}\n"])
  common_files = [
    { path = "/etc/carme/hosts", content = local.hosts },
    { path = "/etc/carme/users", content = join("", [for user in local.users : "${user.name} ${user.uid}\n"]) },
    { path = "/etc/carme/common.sh", content = file("${path.module}/files/common.sh") },
    { path = "/etc/nftables.conf", content = file("${path.module}/files/nftables.conf"), permissions = "0755" },
  ]
  # Mounts that the hub and the nodes have of the controller.
  client_packages = ["munge", "slurm-client", "nfs-common", "nftables", "python3", "bubblewrap"]

  controller_config = {
    hostname         = var.controller
    manage_etc_hosts = false # the image would write it anew at each boot
    package_update   = true
    packages = [
      "munge", "slurm-client", "slurmctld", "slurmdbd", "mariadb-server", "nfs-kernel-server", "nftables", "openssl",
    ]
    write_files = concat(local.common_files, [
      { path = "/etc/carme/slurm.conf", content = local.slurm_conf },
      { path = "/etc/carme/gres.conf", content = local.gres_conf },
      { path = "/etc/carme/cgroup.conf", content = file("${path.module}/files/cgroup.conf") },
      { path = "/etc/carme/job_submit.lua", content = local.job_submit },
      {
        path = "/etc/carme/slurmdbd.conf"
        content = templatefile("${path.module}/files/slurmdbd.conf.tftpl", {
          controller = var.controller
        })
      },
      {
        path = "/etc/carme/exports"
        content = templatefile("${path.module}/files/exports.tftpl", {
          subnet   = var.subnet_cidr
          hub      = var.addresses[var.hub]
          machines = [for name in concat([var.hub], var.nodes) : var.addresses[name]]
        })
      },
      {
        path        = "/usr/local/sbin/carme-first-boot"
        permissions = "0755"
        content = templatefile("${path.module}/files/controller.sh.tftpl", {
          cluster   = var.cluster
          folders   = local.folders
          volume_id = substr(var.volume_id, 0, 20)
        })
      },
    ])
    runcmd = [["/usr/local/sbin/carme-first-boot"]]
  }

  hub_config = {
    hostname         = var.hub
    manage_etc_hosts = false # the image would write it anew at each boot
    package_update   = true
    packages = concat(local.client_packages, [
      "python3-venv", "nodejs", "npm", "sudo", "openssh-client", "openssl", "skopeo", "umoci", "squashfs-tools", var.web_server,
    ])
    write_files = concat(local.common_files, [
      {
        path        = "/etc/carme/passwords"
        permissions = "0600"
        content     = join("", [for user in local.users : "${user.name}:${var.users[user.name].password_hash}\n"])
      },
      { path = "/etc/carme/answers.yaml", content = yamlencode(local.answers) },
      {
        path        = "/usr/local/sbin/carme-first-boot"
        permissions = "0755"
        content = templatefile("${path.module}/files/hub.sh.tftpl", {
          controller = var.controller
          package    = var.hub_package
          host       = var.host
          web_server = var.web_server
          folders    = local.folders
          scratch    = local.scratch
        })
      },
    ])
    runcmd = [["/usr/local/sbin/carme-first-boot"]]
  }

  node_configs = { for name in var.nodes : name => {
    hostname         = name
    manage_etc_hosts = false # the image would write it anew at each boot
    package_update   = true
    packages         = concat(local.client_packages, ["slurmd"], local.scratch_packages)
    write_files = concat(local.common_files, local.sweep_files, [
      { path = "/etc/carme/node-commands.sh", content = "${var.node_commands}\n" },
      {
        path        = "/usr/local/sbin/carme-first-boot"
        permissions = "0755"
        content = templatefile("${path.module}/files/node.sh.tftpl", {
          controller = var.controller
          folders    = local.folders
          scratch    = local.scratch
        })
      },
    ])
    runcmd = [["/usr/local/sbin/carme-first-boot"]]
  } }
}

# Read by bash in JupyterLab's terminals, in the place of ~/.bashrc: what a login shell reads, and the image's programs
# are still found first. /etc/profile sets PATH anew on most systems, and so hides the image's python, pip and carme-hub.
carme_path=$PATH
if [ -r /etc/profile ]; then . /etc/profile; fi
IFS=: read -r -a carme_added <<<"$PATH"
for carme_folder in "${carme_added[@]}"; do # what the system and its profile.d add comes last
    case ":$carme_path:" in *":$carme_folder:"*) ;; *) carme_path+=":$carme_folder" ;; esac
done
export PATH=$carme_path
unset carme_path carme_added carme_folder
# The user's own, of which a login shell reads the first; whatever it does to PATH counts.
if [ -r ~/.bash_profile ]; then
    . ~/.bash_profile
elif [ -r ~/.bash_login ]; then
    . ~/.bash_login
elif [ -r ~/.profile ]; then
    . ~/.profile
elif [ -r ~/.bashrc ]; then
    . ~/.bashrc
fi

. {{ batch }}/interface.bash || exit 126 # names the interface of gloo

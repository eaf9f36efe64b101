# The first process of a node, in its own network, mount and process namespace: it gives the node the directories that
# two nodes of one machine must not share, and then stays. When it ends, the kernel ends everything on the node.
set -eu
mount -t proc proc /proc
mount -t tmpfs -o mode=755,size=256m run /run
mkdir /run/netns /run/lock /run/tensorlane
for name in lib log; do
  mkdir -p "{{dir}}/var-$name"
  mount --bind "{{dir}}/var-$name" "/var/$name"
done
# What pods mount is seen by the node's own processes, and by nobody outside: the node's mounts are private to it.
mount --make-rshared /
# Between pods, and from pods to Services.
echo 1 > /proc/sys/net/ipv4/ip_forward
: > "{{dir}}/ready"
exec "{{bin}}/pause"

#!/bin/sh
# rootfs.sh SUITE PACKAGE,PACKAGE... ROOTFS.tar LIST: a root file system of Debian packages, unpacked and not installed,
# and the list of what is in it. The same packages give the same bytes.
set -eu
suite=$1 packages=$2 output=$3
export list=$4 SOURCE_DATE_EPOCH=0
names='for package in "$1"/var/cache/apt/archives/*.deb; do
  dpkg-deb --show --showformat="\${Package} \${Version} \${Architecture}\n" "$package"
done > "$list"'
mmdebstrap --quiet --variant=extract --format=tar --include="$packages" --extract-hook="$names" "$suite" "$output.all"
# What a machine needs and a container does not, and what tells where it was made.
mmtarfilter --path-exclude='/dev/*' --path-exclude='/etc/hostname' --path-exclude='/etc/resolv.conf' \
  --path-exclude='/etc/fstab' --path-exclude='/etc/apt/*' --path-exclude='/etc/dpkg/*' --path-exclude='/var/*' \
  --path-exclude='/usr/lib/*/gconv/*' --path-exclude='/usr/share/lintian/*' --path-exclude='/usr/share/man/*' \
  --path-exclude='/usr/share/doc/*' --path-include='/usr/share/doc/*/copyright' < "$output.all" > "$output.part"
rm "$output.all"
mv "$output.part" "$output"

first=exchange-0.exchange
bytes=1048576
sum() { tail -c "$bytes" "$1" | sha256sum | cut -d ' ' -f 1; }
test -S /run/tensorlane/session.sock || { echo 'this pod has no sidecar'; exit 1; }

if [ "$JOB_COMPLETION_INDEX" = 0 ]; then
  # A safetensors file: the length of its header (128), the header, the bytes.
  header="{\"weights\":{\"dtype\":\"U8\",\"shape\":[$bytes],\"data_offsets\":[0,$bytes]}}"
  { printf '\200\0\0\0\0\0\0\0%-128s' "$header"; head -c "$bytes" /dev/urandom; } > put.safetensors
  tensorlane put put.safetensors --name helm-test --checksum --output json > put.json
  mkdir www
  grep -o '"reference": *"[^"]*"' put.json | cut -d '"' -f 4 > www/reference
  sum put.safetensors > www/sum
  echo "put: $(cat www/reference)"
  # Until the second pod says that it has everything.
  nc -l -p 8081 > done &
  httpd -p 8080 -h www
  wait "$!"
  exit
fi

until wget -q -O reference "http://$first:8080/reference" && wget -q -O expected "http://$first:8080/sum"; do
  rm -f reference expected
  sleep 1
done
# Until the peers have found each other; the Job has a deadline.
until tensorlane get "$(cat reference)" --to got.safetensors; do sleep 1; done
sum got.safetensors > got
cmp got expected || { echo "the bytes differ: put $(cat expected), got $(cat got)"; exit 1; }
echo "got the same bytes: $(cat got)"
for attempt in 1 2 3 4 5; do
  if echo done | nc -w 5 "$first" 8081; then break; fi
  sleep 1
done

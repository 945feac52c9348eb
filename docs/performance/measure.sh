#!/usr/bin/env bash
# The measurements of docs/performance.md: `docs/performance/measure.sh [FOLDER] [BYTES]`.
# Needs GNU time (/usr/bin/time) and openssl, and twice BYTES (4000000000 where none are given) of disk.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-$(mktemp -d)}
bytes=${2:-4000000000}
cargo build --release --quiet -p glyd
cargo build --release --quiet -p glyd-fixtures --example large
glyd=target/release/glyd
large=target/release/examples/large

# Runs a command, and tells its peak memory and its time.
measured() {
  local report
  report=$(mktemp)
  /usr/bin/time -f '%M %e' -o "$report" "$@" >"$report.out"
  read -r kilobytes seconds < <(tail -n 1 "$report")
  printf '%-60s %7.1f s %8.1f MB peak\n' "${*##*/}" "$seconds" "$(awk "BEGIN { print $kilobytes / 1000 }")"
  rm -f "$report" "$report.out"
}

for kind in dense experts stacked; do
  model="$folder/$kind"
  [ -d "$model" ] || "$large" "$kind" "$bytes" "$model"
  du -sh "$model"
  # Once unmeasured: the first reading fills the system's cache for all that come after.
  cat "$model"/*.safetensors >/dev/null
  printf '%s: ' "$kind"
  ( time openssl dgst -sha256 "$model"/*.safetensors >/dev/null ) 2>&1 | awk '/real/ { print "openssl dgst -sha256 of the source: " $2 }'
  for layout in mma mma12; do
    measured "$glyd" pack "$model" "$folder/$kind-$layout" --layout "$layout" --threads 2 --quiet
    measured "$glyd" verify "$folder/$kind-$layout" --threads 2 --quiet
    rm -rf "${folder:?}/$kind-$layout"
  done
  [ "$kind" = dense ] || rm -rf "$model"
done

# Against reading and hashing alone, in one process: ratios.
cargo build --release --quiet -p glyd-verify --example end_to_end
[ -d "$folder/narrow" ] || "$large" narrow "$((bytes / 2))" "$folder/narrow"
cat "$folder"/narrow/*.safetensors >/dev/null
mkdir -p "$folder/out"
target/release/examples/end_to_end "$folder/narrow" "$folder/out" 5
rm -rf "${folder:?}/out"

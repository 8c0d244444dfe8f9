#!/bin/sh
# Copy the kernels compiled at build time to a writable folder: numba ignores read-only folders.
set -eu
compiled=$(dirname "$0")/kernels
folder=${NUMBA_CACHE_DIR:-}
if [ -n "$folder" ] && [ ! -e "$folder" ] && [ -d "$compiled" ]; then
  rm -rf "$folder.$$" # partial copy of a killed start: a volume outlives its container, and $$ is always 1
  cp -r "$compiled" "$folder.$$"
  chmod -R u+w "$folder.$$"
  mv "$folder.$$" "$folder"
fi
exec "$@"

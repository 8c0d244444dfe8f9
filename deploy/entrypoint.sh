#!/bin/sh
# Put the kernels compiled at build where more may be added: numba uses no folder that it cannot write to.
set -eu
compiled=$(dirname "$0")/kernels
folder=${NUMBA_CACHE_DIR:-}
if [ -n "$folder" ] && [ ! -e "$folder" ] && [ -d "$compiled" ]; then
  rm -rf "$folder.$$" # half a copy, of a start that was killed: a volume outlives its container, and $$ is ever 1
  cp -r "$compiled" "$folder.$$"
  chmod -R u+w "$folder.$$"
  mv "$folder.$$" "$folder"
fi
exec "$@"

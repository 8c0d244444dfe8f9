#!/bin/sh
# Put the kernels compiled at build where more may be added: numba uses no folder that it cannot write to.
set -eu
compiled=$(dirname "$0")/kernels
folder=${NUMBA_CACHE_DIR:-}
if [ -n "$folder" ] && [ ! -e "$folder" ] && [ -d "$compiled" ]; then
  cp -r "$compiled" "$folder.$$"
  chmod -R u+w "$folder.$$"
  mv "$folder.$$" "$folder"
fi
exec "$@"

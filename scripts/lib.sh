# Helpers shared by the scripts in this folder; sourced, never run. Sets ROOT, the project's folder.
# shellcheck shell=bash
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=$ROOT/.venv
# What the project is built from; the code itself is used in place.
BUILT_FROM=("$ROOT/pyproject.toml" "$ROOT"/distbench/wire/*.c)

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "$*"; exit 1; }
in_ci() { case ${CI:-} in "" | 0 | false) return 1 ;; esac; }

# Prints the first interpreter that is new enough: $PYTHON when set, else python3, else the versioned names.
find_python() {
  local candidate found=
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return 0
    fi
    found=${found:-$("$candidate" -V 2>&1) at $(command -v "$candidate")}
  done
  die "needs Python 3.11 or newer, found ${found:-none}; name one with PYTHON=/path/to/python3"
}

# about PYTHON: prints its version, and whether its C compiler and its headers are there.
about() {
  "$1" -c 'import os, shutil, sys, sysconfig
compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
header = os.path.join(sysconfig.get_path("include"), "Python.h")
print(sys.version, bool(shutil.which(compiler)) and os.path.exists(header))'
}

# fingerprint PYTHON FILE...: one word that changes when the interpreter, the place or one of the files does, or a compiler comes.
fingerprint() {
  local python=$1
  shift
  { about "$python"; printf '%s\n' "$ROOT"; cat -- "$@"; } | sha256sum | cut -c 1-32
}

# make_venv DIR PYTHON: makes DIR a virtual environment of that interpreter; keeps one that already is.
make_venv() {
  local dir=$1 python=$2
  if [ -x "$dir/bin/python" ] && [ "$("$dir/bin/python" -VV 2>&1)" = "$("$python" -VV)" ]; then
    return 0
  fi
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    die "$python lacks the venv module (on Debian and Ubuntu: apt-get install python3-venv)"
  say "making ${dir#"$ROOT/"} with $("$python" -V)"
  "$python" -m venv --clear "$dir" || die "could not make the virtual environment $dir"
}

# pip_install DIR ARGS...: pip in DIR's environment; a line now and then, the full output in DIR/pip.log, one line on failure.
pip_install() {
  local dir=$1 cause
  shift
  if ! "$dir/bin/python" -m pip install --no-input --disable-pip-version-check --retries 2 --progress-bar off "$@" 2>&1 |
    tee -a "$dir/pip.log" | pip_progress; then
    cause=$(grep -m 1 -oE 'Name or service not known|Temporary failure in name resolution|Network is unreachable|Connection refused|timed out|No space left on device' "$dir/pip.log") ||
      cause=$(grep -iE '^ *[a-z]*error: ' "$dir/pip.log" | tail -n 1) || cause="see the log"
    die "could not install packages: $cause (is a package index reachable? log: $dir/pip.log)"
  fi
}

# Shows what takes time in pip's output: the large downloads and the final step.
pip_progress() {
  awk -v name="${0##*/}" '
    /Downloading .*\([0-9.]+ MB\)/ {
      size = $(NF - 1); sub(/^\(/, "", size)
      if (size + 0 >= 10) { file = $2; sub(/-cp.*|-py.*/, "", file); report("downloading " file " (" size " MB)") }
    }
    /^Installing collected packages:.*,/ { report("unpacking " gsub(/,/, ",") + 1 " packages") }
    function report(text) { printf "%s:   %s\n", name, text > "/dev/stderr"; fflush("/dev/stderr") }'
}

# ensure_env LOCK: makes or updates .venv so that it holds the lock's packages and this project, editable.
# A stamp makes the next call return at once; the development lock holds all of the runtime lock.
ensure_env() {
  local lock=$1 python runtime dev wanted
  python=$(find_python) || exit 1
  runtime=$(fingerprint "$python" "$ROOT/requirements.lock" "${BUILT_FROM[@]}")
  dev=$(fingerprint "$python" "$ROOT/requirements-dev.lock" "${BUILT_FROM[@]}")
  wanted=$runtime
  [ "$lock" = requirements-dev.lock ] && wanted=$dev
  if [ -x "$VENV/bin/python" ] && grep -qsx "$wanted" "$VENV/.stamp"; then
    return 0
  fi
  make_venv "$VENV" "$python"
  : >"$VENV/pip.log"
  say "bringing .venv to $lock: $(grep -c '^[a-zA-Z0-9]' "$ROOT/$lock") packages, a minute or two the first time"
  pip_install "$VENV" --require-hashes -r "$ROOT/$lock"
  rm -f "$ROOT"/distbench/wire/_hot_path.*.so # not that an old one stays where it cannot be built anew
  pip_install "$VENV" --no-deps --no-build-isolation -e "$ROOT"
  "$VENV/bin/python" -c 'import distbench.wire._hot_path' 2>/dev/null ||
    say "the client's hot path could not be compiled, Python stands in: a token costs about a third more (it takes a C compiler and Python's headers; on Debian and Ubuntu: apt-get install gcc python3-dev)"
  printf '%s\n' "$runtime" >"$VENV/.stamp"
  [ "$lock" != requirements-dev.lock ] || printf '%s\n' "$dev" >>"$VENV/.stamp"
}

# shellcheck shell=sh
# Finds Python, installs what is missing, keeps the virtual environments in step with the lock. Sourced by the scripts
# beside it; needs a POSIX shell and nothing else. It changes the system only by apt, and only where root or sudo lets it
# without asking.

set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
# Debian keeps nft and ip out of an ordinary user's PATH.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export PATH

supported_pythons='3.12 3.13 3.14'

say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# ---- system programs -------------------------------------------------------------------------------------------------

may_install() {
    command -v apt-get >/dev/null 2>&1 || return 1
    [ "$(id -u)" = 0 ] || sudo -n true >/dev/null 2>&1
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

is_there() {
    case $1 in
        /*) [ -e "$1" ] ;;
        python3:*) /usr/bin/python3 -c "import ${1#python3:}" >/dev/null 2>&1 ;;
        perl:*) perl "-M${1#perl:}" -e1 >/dev/null 2>&1 ;;
        # Debian's own python3 is meant, which is what a sandbox shows, not one that a version switcher put first in PATH.
        python3) [ -x /usr/bin/python3 ] ;;
        *) command -v "$1" >/dev/null 2>&1 ;;
    esac
}

# Prints the packages of the groups named that have something missing, once each.
missing_packages() {
    wanted=" $* "
    while read -r probe package group _; do
        case $probe in '' | '#'*) continue ;; esac
        case $wanted in *" $group "*) ;; *) continue ;; esac
        is_there "$probe" || echo "$package"
    done <"$root/scripts/system-packages.txt" | sort -u
}

# Debian starts a daemon when its package arrives. A peer for the bench must not: policy-rc.d is Debian's own way to say so.
apt_install() {
    policy=/usr/sbin/policy-rc.d
    made_policy=
    if [ ! -e $policy ]; then
        made_policy=yes
        printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null && as_root chmod 755 $policy
    fi
    status=0
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >&2 || status=$?
    [ -z "$made_policy" ] || as_root rm -f $policy
    return $status
}

apt_knows() { for package in "$@"; do apt-cache show "$package" >/dev/null 2>&1 || return 1; done; }

# One update a run, and only when the lists do not know a package or the mirror has moved on from them.
apt_update_once() {
    [ -z "${apt_updated:-}" ] || return 1
    apt_updated=yes
    say 'Reading the package lists ...'
    as_root apt-get update -q >&2
}

ensure_packages() {
    packages=$(missing_packages "$@" | tr '\n' ' ')
    [ -n "$packages" ] || return 0
    may_install || die "Missing system packages: ${packages}- install them (as root: apt-get install $packages), then run this again."
    say "Installing: $packages"
    # shellcheck disable=SC2086  # a list of words on purpose
    apt_knows $packages || apt_update_once || :
    # shellcheck disable=SC2086
    apt_install $packages || { apt_update_once && apt_install $packages; } ||
        die "apt-get could not install: ${packages}- its own message above says why."
    still=$(missing_packages "$@" | tr '\n' ' ')
    [ -z "$still" ] || die "Still missing after the installation: $still"
}

# ---- Python ----------------------------------------------------------------------------------------------------------

# The paths where a Python of version $1 may lie, likeliest first. A version switcher's shim comes through PATH and may
# refuse to run; the real interpreter is then found in the switcher's own directory.
python_places() {
    command -v "python$1" 2>/dev/null || :
    command -v python3 2>/dev/null || :
    home=${HOME:-/nonexistent}
    for place in \
        "${PYENV_ROOT:-$home/.pyenv}"/versions/"$1"*/bin/python3 "$home"/.pyenv/versions/"$1"*/bin/python3 \
        "${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-$home/.local/share}/uv/python}"/cpython-"$1"*/bin/python3 \
        "$home"/.local/bin/python"$1" "$home"/.asdf/installs/python/"$1"*/bin/python3 \
        "$home"/.local/share/mise/installs/python/"$1"*/bin/python3 \
        "$home"/miniconda3/bin/python3 "$home"/miniforge3/bin/python3 /opt/conda/bin/python3 \
        /usr/local/bin/python"$1" /usr/bin/python"$1" /opt/python"$1"/bin/python3 /opt/python/"$1"*/bin/python3; do
        [ -x "$place" ] && echo "$place"
    done
    return 0
}

# Prints the real interpreter when $1 is Python $2 and can make a virtual environment (Debian ships that part apart).
python_is() {
    "$1" -c 'import sys, venv, ensurepip, ssl
if "%d.%d" % sys.version_info[:2] != sys.argv[1] or sys.implementation.name != "cpython": sys.exit(1)
print(getattr(sys, "_base_executable", None) or sys.executable)' "$2" 2>/dev/null
}

# Prints the first usable Python among the versions given.
find_python() {
    for version in "$@"; do
        python_places "$version" | while read -r place; do
            if found=$(python_is "$place" "$version"); then echo "$found"; break; fi
        done | grep . && return 0
    done
    return 1
}

install_python() {
    may_install || return 1
    for attempt in known updated; do
        for version in $supported_pythons; do
            if apt_knows "python$version-venv" "python$version"; then
                apt_install "python$version" "python$version-venv" && return 0
            fi
        done
        [ $attempt = updated ] || apt_update_once || return 1
    done
    return 1
}

# Sets $python and $python_version. WICKETGATE_PYTHON names an interpreter to use instead of searching.
ensure_python() {
    if [ -n "${WICKETGATE_PYTHON:-}" ]; then
        python=$WICKETGATE_PYTHON
        command -v "$python" >/dev/null 2>&1 || die "WICKETGATE_PYTHON names $python, which is not an executable file."
    else
        # shellcheck disable=SC2086
        python=$(find_python $supported_pythons) || { install_python >&2 && python=$(find_python $supported_pythons); } ||
            die 'No Python 3.12 or newer (with venv and ssl) was found in PATH, pyenv, uv, asdf, mise, conda, /usr/local or /opt, and apt has none: install one, or name it in WICKETGATE_PYTHON.'
    fi
    python_version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') ||
        die "$python does not run."
    case " $supported_pythons " in
        *" $python_version "*) ;;
        *) die "$python is Python $python_version; one of $supported_pythons is needed." ;;
    esac
}

# One at a time: two scripts would clear the environment under each other.
ensure_venv() {
    (if command -v flock >/dev/null 2>&1; then flock 9; fi && make_venv "$1" "$2" 9>&-) 9>"$1.lock" || exit 1
}

# Makes the environment $1 with the interpreter $2 anew when the lock or the interpreter has changed, and installs the
# project into it again when only the project file has. Stamps are written last: an interrupted set-up is done again.
make_venv() {
    lock_stamp=$({ "$2" -VV; echo "$root"; cat requirements/dev.lock; } | cksum)
    if [ "$(cat "$1/lock.stamp" 2>/dev/null || :)" != "$lock_stamp" ]; then
        say "Making $1 with $("$2" -V) ..."
        "$2" -m venv --clear "$1" || die "$2 cannot make a virtual environment in $1."
        pip_into "$1" --require-hashes -r requirements/dev.lock
        echo "$lock_stamp" >"$1/lock.stamp"
    fi
    project_stamp=$(cksum <pyproject.toml)
    if [ "$(cat "$1/project.stamp" 2>/dev/null || :)" != "$project_stamp" ]; then
        pip_into "$1" --no-deps --no-build-isolation -e .
        echo "$project_stamp" >"$1/project.stamp"
    fi
    # Whoever starts the program may be unable to write byte code, or told not to, and without it a start takes twice as long.
    "$1/bin/python" -m compileall -qq broker certs netns sandbox wicketgate || :
}

pip_into() {
    place=$1
    shift
    "$place/bin/python" -m pip install -qq --disable-pip-version-check "$@" >&2 ||
        die "The locked packages could not be installed into $place; pip's message above says why."
}

# The peer of the bench that comes from npm's registry, where there is npm. It also asks for Node, ripgrep and socat.
ensure_npm_peer() {
    if command -v npm >/dev/null 2>&1 && [ ! -d .venv-bench/npm/node_modules ]; then
        npm install --silent --no-audit --no-fund --prefix .venv-bench/npm @anthropic-ai/sandbox-runtime >&2 ||
            say 'sandbox-runtime is left out.'
    fi
}

# Everything the groups $@ need, and the environment .venv.
ensure_all() {
    ensure_packages "$@"
    ensure_python
    ensure_venv .venv "$python"
}

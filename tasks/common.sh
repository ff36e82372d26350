# What the scripts of tasks/, tests/container/ and .ci/ share. To be sourced by bash.
# shellcheck shell=bash

# Where rustup puts cargo: a shell older than the installation has not got it on its PATH.
# Last, so that a cargo which is on the PATH stays the one that is used.
PATH=$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin
# And the programs of the system's administrator, whom a user's shell does not look for.
PATH=$PATH:/usr/sbin:/sbin

# To standard error, as standard output belongs to the programs that the scripts run.
say() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
}

fail() {
  say "$*"
  exit 1
}

has() {
  command -v "$1" >/dev/null
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  else
    sudo "$@"
  fi
}

# To be called first, with what is to be done by hand where `as_root` will not work.
need_root() {
  [ "$(id -u)" = 0 ] || has sudo || fail "this needs root, and there is no sudo; as root: $*"
}

# Shows what a command prints only if it fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 </dev/null || status=$?
  [ "$status" = 0 ] || cat "$log" >&2
  rm -f "$log"
  return "$status"
}

apt_get() {
  # Another apt may be at work, as unattended upgrades are: wait for it.
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@"
}

apt_install() {
  need_root "apt-get install $*"
  say "installing $* with apt-get"
  # The lists of packages are fetched only when they prove to be missing or too old. One
  # source of several may be out of reach, so the installation judges, not the update.
  if ! apt_get install -y --no-install-recommends "$@" >/dev/null 2>&1 </dev/null; then
    quietly apt_get update || true
    quietly apt_get install -y --no-install-recommends "$@" || fail "apt-get cannot install $*"
  fi
}

#!/usr/bin/env bash
# Install utxod as a service on Debian and its relatives, or remove it again.
set -euo pipefail
shopt -s nullglob
usage() {
  cat <<'TEXT'
Usage: systemd/install.sh [--from SOURCE] [--prefix DIR] [--root DIR]
       systemd/install.sh --remove [--purge] [--prefix DIR] [--root DIR]

Installs the program into a virtual environment of its own, and units, user, folders, configuration, manual page and
completions. Starts nothing. May be run again: it updates everything but the configuration.

  --from SOURCE  a wheel, or a requirement such as 'utxod[postgres,s3] @ file:///srv/utxod.whl'; by default this source
                 tree, with the locked versions of all that it depends on
  --prefix DIR   where the virtual environment is; by default /opt/utxod
  --root DIR     put files below DIR, and neither create the user nor talk to systemd: for images and packages
  --remove       stop the services and remove what was installed; the configuration and all data stay
  --purge        with --remove: remove the configuration, the stores and the backups too
TEXT
}

tree="$(cd "$(dirname "$0")/.." && pwd)"
from="" prefix=/opt/utxod root="" remove="" purge=""
while [ $# -gt 0 ]; do
  case "$1" in
    --from | --prefix | --root) [ $# -gt 1 ] || { usage >&2; exit 2; } ;;&
    --from) from="$2"; shift ;;
    --prefix) prefix="${2%/}"; shift ;;
    --root) root="${2%/}"; shift ;;
    --remove) remove=1 ;;
    --purge) purge=1 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "install.sh: unknown argument: $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
[[ "$prefix" == /?* && "$prefix" != *[[:space:]]* ]] || { echo "install.sh: --prefix is not an absolute path" >&2; exit 2; }
[ -z "$purge" ] || [ -n "$remove" ] || { echo "install.sh: --purge needs --remove" >&2; exit 2; }
if [ -z "$root" ] && [ "$(id -u)" != 0 ]; then echo "install.sh: only root can install a service" >&2; exit 1; fi

share="$root/usr/local/share"
units="$root/usr/local/lib/systemd/system"
completions=("bash $share/bash-completion/completions/utxod" "zsh $share/zsh/site-functions/_utxod"
  "fish $share/fish/vendor_completions.d/utxod.fish")
systemd_runs() { [ -z "$root" ] && [ -d /run/systemd/system ]; }

remove_all() {
  if systemd_runs; then
    systemctl disable --now utxod.socket utxod.service utxod-gateway.service utxod-split.service utxod-backup.timer 2>/dev/null || true
    systemctl stop utxod-backup.service 'utxod-feed@*.service' 'utxod-replica@*.service' 2>/dev/null || true
    rm -f /etc/systemd/system/*.wants/utxod-{feed,replica}@*.service
  fi
  for file in "$tree"/systemd/utxod*.{service,socket,timer}; do rm -f "$units/$(basename "$file")"; done
  for each in "${completions[@]}"; do rm -f "${each#* }"; done
  rm -f "$root/usr/local/lib/sysusers.d/utxod.conf" "$root/usr/local/lib/tmpfiles.d/utxod.conf" \
    "$share/man/man1/utxod.1" "$root/usr/local/bin/utxod"
  rm -rf "$share/doc/utxod" "$root$prefix"
  [ -z "$purge" ] || rm -rf "$root/etc/utxod" "$root/var/lib/utxod" "$root/var/lib/utxod-replicas" "$root/var/lib/utxod-gateway" \
    "$root/var/backups/utxod" \
    "$root/var/lib/systemd/timers/stamp-utxod-backup.timer"
  if systemd_runs; then systemctl daemon-reload; fi
  if [ -z "$purge" ]; then echo "removed; /etc/utxod, /var/lib/utxod and /var/backups/utxod were kept"; else echo removed; fi
}

install_program() {
  local python
  for python in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
    if [ -n "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then break; fi
    python=""
  done
  [ -n "$python" ] || { echo "install.sh: utxod needs Python 3.11 or later" >&2; exit 1; }
  "$python" -c 'import ensurepip' 2>/dev/null || { echo "install.sh: python3-venv is missing: apt-get install python3-venv" >&2; exit 1; }
  [ -x "$root$prefix/bin/python" ] || "$python" -m venv "$root$prefix"
  pip() { "$root$prefix/bin/python" -m pip --disable-pip-version-check -q "$@"; }
  if [ -n "$from" ]; then
    pip install --upgrade "$from"
  else
    pip install --require-hashes -r "$tree/requirements/service.txt"
    pip install --no-build-isolation --no-deps --force-reinstall "$tree"
  fi
  # pip writes the path of the environment as it is now into the first line of each command.
  [ -z "$root" ] || sed -i "1s|^#!$root$prefix/|#!$prefix/|" "$root$prefix"/bin/utxod
  install -d "$root/usr/local/bin"
  ln -sfn "$prefix/bin/utxod" "$root/usr/local/bin/utxod"
}

install_files() {
  local file each
  utxod() { "$root$prefix/bin/python" -m daemon "$@"; }
  install -d "$units" "$root"/usr/local/lib/{sysusers.d,tmpfiles.d} "$share/man/man1" "$share/doc/utxod"
  for file in "$tree"/systemd/utxod*.{service,socket,timer}; do
    sed "s|/opt/utxod|$prefix|g" "$file" | install -m 644 /dev/stdin "$units/$(basename "$file")"
  done
  install -m 644 "$tree/systemd/utxod.sysusers" "$root/usr/local/lib/sysusers.d/utxod.conf"
  install -m 644 "$tree/systemd/utxod.tmpfiles" "$root/usr/local/lib/tmpfiles.d/utxod.conf"
  install -m 644 "$tree"/docs/*.md "$tree/docs/alerts.yml" "$tree/docs/grafana.json" "$share/doc/utxod"
  "$root$prefix/bin/python" -m daemon.manual | install -m 644 /dev/stdin "$share/man/man1/utxod.1"
  for each in "${completions[@]}"; do
    install -d "$(dirname "${each#* }")"
    utxod completion "${each%% *}" | install -m 644 /dev/stdin "${each#* }"
  done
  if [ ! -e "$root/etc/utxod/utxod.toml" ]; then
    install -d -m 750 "$root/etc/utxod"
    sed -e 's|^# data_dir = .*|data_dir = "/var/lib/utxod"|' -e 's|^# path = "/run/utxod/utxod.sock"|path = "/run/utxod/utxod.sock"|' \
      "$tree/systemd/utxod.toml" | install -m 640 /dev/stdin "$root/etc/utxod/utxod.toml"
  fi
}

if [ -n "$remove" ]; then remove_all; exit 0; fi
install_program
install_files
[ -z "$root" ] || { echo "installed below $root"; exit 0; }
systemd-sysusers utxod.conf
systemd-tmpfiles --create utxod.conf
if systemd_runs; then
  systemctl daemon-reload
  systemctl try-restart utxod.service utxod-gateway.service
fi
cat <<TEXT
installed. Next:
  editor /etc/utxod/utxod.toml                  # chain.family and chain.network at least
  utxod config check --config /etc/utxod/utxod.toml
  systemctl enable --now utxod.socket utxod.service
  utxod status
TEXT

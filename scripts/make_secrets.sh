#!/bin/sh
# Makes the secret files that docker-compose.yml mounts. Never touches existing ones.
#   sh scripts/make_secrets.sh [FOLDER]      default ./secrets
# As root, it gives them to uid 10001, the containers' user (a mounted file keeps its owner and mode).
set -eu
folder=${1:-secrets}
umask 077
mkdir -p "$folder"

hex() { head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }

keep() { # keep NAME TEXT
    [ -e "$folder/$1" ] || { printf '%s\n' "$2" > "$folder/$1" && chmod 0400 "$folder/$1"; }
}

for name in api_key_pepper session_key data_hmac_key webhook_key parts_key noise_secret signing_key postgres_password redis_password; do
    keep "$name" "$(hex)"
done
keep pgpass "*:*:*:scrimp:$(cat "$folder/postgres_password")"

if [ "$(id -u)" = 0 ]; then
    for name in api_key_pepper session_key data_hmac_key webhook_key parts_key noise_secret signing_key pgpass redis_password; do
        chown 10001:10001 "$folder/$name"
    done
else
    echo "Not root: give these files to uid 10001, or the containers cannot read them:" >&2
    echo "    sudo chown 10001:10001 $folder/*_key $folder/*_pepper $folder/noise_secret $folder/pgpass $folder/redis_password" >&2
fi

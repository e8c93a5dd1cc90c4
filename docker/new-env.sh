#!/bin/sh
# Writes docker/.env with new passwords for compose.yaml, for its owner's eyes only. Does not replace one.
set -eu
cd "$(dirname "$0")"
umask 077
set -C # never over one that is there: PostgreSQL would go on with the old password
new() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
printf 'DATABASE_PASSWORD=%s\nS3_SECRET=%s\nRAY_TOKEN=%s\n' "$(new)" "$(new)" "$(new)" > .env
echo "wrote docker/.env"

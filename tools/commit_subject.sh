#!/bin/sh
# Refuse a commit whose subject is not `area: imperative` in at most 72 characters.
subject=$(sed -n 1p "$1")
case $subject in
  "fixup! "* | "squash! "* | "Revert "*) exit 0 ;;
esac
if [ "${#subject}" -gt 72 ]; then
  echo "the subject has ${#subject} characters; at most 72" >&2
  exit 1
fi
if ! printf '%s\n' "$subject" | grep -Eq '^[a-z0-9_./ -]+: [^ ].*[^.]$'; then
  echo "the subject must be 'area: imperative', without a full stop: $subject" >&2
  exit 1
fi

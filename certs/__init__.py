"""Certificates: the authority that inspection signs with, the leaves, the upstream's verification, the trust kit.

Imports nothing of ours. The signing key lives in this package's process and directory only; every other part gets
certificates, ready TLS contexts or PEM bytes. The modules by what they need:

- `store`, `bundle`, `kit`, `roots`, `variables`, `truststore`, `der`: the standard library only, so that a cached trust
  kit costs a program start nothing;
- `authority`, `leaves`, `contexts`: `cryptography`;
- `upstream`, `alerts`, `names`: the `ssl` module.
"""

"""Public DNS resolvers: the names and addresses that serve DNS over HTTPS, TLS or QUIC to everybody.

A resolver carries data out in the names it is asked for, so a broad rule must not open one by accident; a rule for
exactly this host may. This module only tells which hosts they are. The list is of well-known operators and is not
complete: the media type `application/dns-message` has to be judged where requests are inspected.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from broker.policy.special_names import suffixes_of


def is_public_resolver(host: str | IPv4Address | IPv6Address) -> bool:
    """Tell whether a normalised name, or a canonical address, is that of a well-known public resolver."""
    if isinstance(host, str):
        return not _ZONES.isdisjoint(suffixes_of(host))
    return host in _ADDRESSES


# Each also matches every name below it. Where an operator's zone serves ordinary pages too, only the resolver's own
# names are listed.
_ZONE_WORDS: Final = """
dns.google dns.google.com dns64.dns.google google-public-dns-a.google.com google-public-dns-b.google.com 8888.google
cloudflare-dns.com one.one.one.one cloudflare-gateway.com
dns.quad9.net dns9.quad9.net dns10.quad9.net dns11.quad9.net dns12.quad9.net dns-nosec.quad9.net
doh.opendns.com dns.opendns.com doh.familyshield.opendns.com dns.umbrella.com doh.umbrella.com
dns.nextdns.io doh.nextdns.io dns1.nextdns.io dns2.nextdns.io doh3.dns.nextdns.io
adguard-dns.com dns.adguard.com dns-family.adguard.com dns-unfiltered.adguard.com d.adguard-dns.com
doh.cleanbrowsing.org security-filter-dns.cleanbrowsing.org adult-filter-dns.cleanbrowsing.org
family-filter-dns.cleanbrowsing.org
dns.controld.com freedns.controld.com
dns.mullvad.net doh.mullvad.net dot.mullvad.net
dns.sb doh.sb dot.sb
dns0.eu zero.dns0.eu kids.dns0.eu joindns4.eu
doh.pub dot.pub dns.pub doh.360.cn dot.360.cn dns.alidns.com dns.ipv6dns.com
dns.yandex.net dot.dns.yandex.net dns.yandex.ru
ordns.he.net doh.xfinity.com dot.xfinity.com
private.canadianshield.cira.ca protected.canadianshield.cira.ca family.canadianshield.cira.ca
dns.digitale-gesellschaft.ch dns.switch.ch doh.li doh.applied-privacy.net dot1.applied-privacy.net dns.njal.la
anycast.uncensoreddns.org unicast.uncensoreddns.org anycast.censurfridns.dk doh.libredns.gr dot.libredns.gr
wikimedia-dns.org dnsforge.de doh.ffmuc.net dot.ffmuc.net dns.hostux.net doh.powerdns.org
pi-dns.com blahdns.com doh.tiar.app dot.tiar.app jp.tiar.app doh.dnslify.com doh.seby.io
dns.rethinkdns.com basic.rethinkdns.com max.rethinkdns.com sky.rethinkdns.com
public.dns.iij.jp dns.twnic.tw dns.decloudus.com dns.therifleman.name dns.surfsharkdns.com freedns.he.net
doh.crypto.sx odoh.crypto.sx doh.dns.snopyta.org fi.doh.dns.snopyta.org dns.aa.net.uk dns.flatuslifir.is
doh.cloud.dnsforfamily.com dns-doh.dnsforfamily.com dns.oszx.co doh.centraleu.pi-dns.com
"""
_ZONES: Final = frozenset(_ZONE_WORDS.split())

_ADDRESS_WORDS: Final = """
1.1.1.1 1.1.1.2 1.1.1.3 1.0.0.1 1.0.0.2 1.0.0.3 162.159.36.1 162.159.46.1
2606:4700:4700::1111 2606:4700:4700::1001 2606:4700:4700::1112 2606:4700:4700::1002 2606:4700:4700::1113
2606:4700:4700::1003 2606:4700:4700::64 2606:4700:4700::6400
8.8.8.8 8.8.4.4 2001:4860:4860::8888 2001:4860:4860::8844 2001:4860:4860::64 2001:4860:4860::6464
9.9.9.9 9.9.9.10 9.9.9.11 9.9.9.12 149.112.112.9 149.112.112.10 149.112.112.11 149.112.112.12 149.112.112.112
2620:fe::fe 2620:fe::9 2620:fe::10 2620:fe::11 2620:fe::fe:9 2620:fe::fe:10 2620:fe::fe:11
208.67.222.222 208.67.220.220 208.67.222.123 208.67.220.123 146.112.41.2 146.112.41.3
2620:119:35::35 2620:119:53::53
94.140.14.14 94.140.15.15 94.140.14.15 94.140.15.16 94.140.14.140 94.140.14.141 2a10:50c0::ad1:ff 2a10:50c0::ad2:ff
185.228.168.9 185.228.169.9 185.228.168.10 185.228.168.168 76.76.2.0 76.76.10.0 76.76.2.22 194.242.2.2 194.242.2.3
185.222.222.222 45.11.45.11 193.110.81.0 185.253.5.0 223.5.5.5 223.6.6.6 2400:3200::1 2400:3200:baba::1
119.29.29.29 119.28.28.28 1.12.12.12 120.53.53.53 77.88.8.8 77.88.8.1 77.88.8.2 77.88.8.3 77.88.8.7 77.88.8.88
74.82.42.42 2001:470:20::2 4.2.2.1 4.2.2.2 4.2.2.3 4.2.2.4 4.2.2.5 4.2.2.6 8.26.56.26 8.20.247.20
64.6.64.6 64.6.65.6 45.90.28.0 45.90.30.0 185.95.218.42 185.95.218.43 130.59.31.248 130.59.31.251
91.239.100.100 89.233.43.71 149.112.121.10 149.112.122.10 185.71.138.138 101.101.101.101 103.2.57.5 103.2.57.6
"""
_ADDRESSES: Final = frozenset(ip_address(word) for word in _ADDRESS_WORDS.split())

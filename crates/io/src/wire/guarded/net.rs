//! Which IP addresses are public.
//!
//! Guarantees: [`is_public`] is true only for addresses of hosts on the public internet. Addresses that embed
//! another one (mapped, translated, 6to4, Teredo) are not public, because the embedded address could be
//! anything. Leaves to others: names.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::{Error, Result};

/// A range of addresses with a common prefix.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Net {
    first: IpAddr,
    bits: u8,
}

const NOT_PUBLIC_V4: &[(Ipv4Addr, u8)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    // A public address that a cloud uses for a per-machine service.
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// The global unicast range. Unique-local, link-local, site-local, multicast, mapped, compatible and translated
/// addresses are all outside of it.
const PUBLIC_V6: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Ranges of [`PUBLIC_V6`] that are not public.
const NOT_PUBLIC_V6: &[(Ipv6Addr, u8)] = &[
    // Protocol assignments: Teredo, benchmarking, ORCHID.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// Whether an address can belong to a server on the public internet.
pub fn is_public(address: IpAddr) -> bool {
    let is_in = |(first, bits): (IpAddr, u8)| Net { first, bits }.contains(address);
    match address {
        IpAddr::V4(_) => !NOT_PUBLIC_V4.iter().any(|(first, bits)| is_in(((*first).into(), *bits))),
        IpAddr::V6(_) => {
            let (first, bits) = PUBLIC_V6;
            is_in((first.into(), bits))
                && !NOT_PUBLIC_V6.iter().any(|(first, bits)| is_in(((*first).into(), *bits)))
        }
    }
}

impl Net {
    /// Parses an address, which means itself alone, or an address and a prefix length: `10.0.0.0/8`.
    pub fn parse(text: &str) -> Result<Self> {
        let bad =
            || Error::invalid(format!("{text:?} is not a network: expected 10.0.0.0/8 or ::1"));
        let (first, bits) = match text.split_once('/') {
            Some((first, bits)) => (first, Some(bits)),
            None => (text, None),
        };
        let first: IpAddr = first.parse().map_err(|_| bad())?;
        let most = if first.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), str::parse).map_err(|_| bad())?;
        if bits > most { Err(bad()) } else { Ok(Self { first, bits }) }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                let differs = first.to_bits() ^ address.to_bits();
                differs.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                let differs = first.to_bits() ^ address.to_bits();
                differs.leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(addresses: &[&str], public: bool) {
        for address in addresses {
            let parsed: IpAddr = address.parse().expect("an address");
            assert_eq!(is_public(parsed), public, "{address}");
        }
    }

    #[test]
    fn addresses_of_private_networks_are_not_public() {
        check(
            &[
                "0.0.0.0",
                "0.255.255.255",
                "10.0.0.0",
                "10.255.255.255",
                "100.64.0.0",
                "100.100.100.200",
                "100.127.255.255",
                "127.0.0.1",
                "127.255.255.255",
                "168.63.129.16",
                "169.254.0.1",
                "169.254.169.254",
                "172.16.0.0",
                "172.31.255.255",
                "192.0.0.1",
                "192.0.0.192",
                "192.0.2.1",
                "192.88.99.1",
                "192.168.0.1",
                "192.168.255.255",
                "198.18.0.0",
                "198.19.255.255",
                "198.51.100.7",
                "203.0.113.7",
                "224.0.0.1",
                "239.255.255.255",
                "240.0.0.1",
                "255.255.255.255",
            ],
            false,
        );
    }

    #[test]
    fn addresses_next_to_private_networks_are_public() {
        check(
            &[
                "1.0.0.0",
                "1.1.1.1",
                "8.8.8.8",
                "9.255.255.255",
                "11.0.0.0",
                "100.63.255.255",
                "100.128.0.0",
                "126.255.255.255",
                "128.0.0.0",
                "168.63.129.15",
                "168.63.129.17",
                "169.253.255.255",
                "169.255.0.0",
                "172.15.255.255",
                "172.32.0.0",
                "192.0.1.0",
                "192.0.3.0",
                "192.88.98.255",
                "192.88.100.0",
                "192.167.255.255",
                "192.169.0.0",
                "198.17.255.255",
                "198.20.0.0",
                "198.51.99.255",
                "198.51.101.0",
                "203.0.112.255",
                "203.0.114.0",
                "223.255.255.255",
                "2001:200::1",
                "2001:4860:4860::8888",
                "2003::1",
                "2606:4700:4700::1111",
                "2620:fe::fe",
                "2a00:1450::1",
                "3ffe::1",
            ],
            true,
        );
    }

    #[test]
    fn special_and_embedding_ipv6_addresses_are_not_public() {
        check(
            &[
                "::",
                "::1",
                // IPv4-compatible and mapped, with private and public addresses inside.
                "::127.0.0.1",
                "::8.8.8.8",
                "::ffff:127.0.0.1",
                "::ffff:10.0.0.1",
                "::ffff:169.254.169.254",
                "::ffff:8.8.8.8",
                // Translated.
                "::ffff:0:127.0.0.1",
                "64:ff9b::127.0.0.1",
                "64:ff9b::8.8.8.8",
                "64:ff9b:1::10.0.0.1",
                "64:ff9b:1:ffff::1",
                // Discard-only, and segment identifiers.
                "100::1",
                "100:0:0:1::1",
                "5f00::1",
                // Teredo, benchmarking, ORCHID.
                "2001::1",
                "2001:0:7f00:1::1",
                "2001:2::1",
                "2001:10::1",
                "2001:20::1",
                "2001:1ff:ffff::1",
                "2001:db8::1",
                "2001:db8:ffff::1",
                // 6to4, with 127.0.0.1, 10.0.0.1 and 8.8.8.8 inside.
                "2002:7f00:1::",
                "2002:a00:1::1",
                "2002:808:808::1",
                "3fff::1",
                "3fff:fff::1",
                // Unique-local, link-local, site-local, multicast.
                "fc00::1",
                "fd00:ec2::254",
                "fdff:ffff::1",
                "fe80::1",
                "febf::1",
                "fec0::1",
                "feff::1",
                "ff02::1",
                "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            ],
            false,
        );
    }

    #[test]
    fn networks_are_parsed_and_invalid_ones_are_refused() {
        let has = |net: &str, address: &str| {
            Net::parse(net).expect("a network").contains(address.parse().expect("an address"))
        };
        assert!(has("127.0.0.1", "127.0.0.1") && !has("127.0.0.1", "127.0.0.2"));
        assert!(has("10.0.0.0/8", "10.9.8.7") && !has("10.0.0.0/8", "11.0.0.0"));
        assert!(has("0.0.0.0/0", "8.8.8.8") && !has("0.0.0.0/0", "::1"));
        assert!(has("fd00::/8", "fd12::1") && !has("fd00::/8", "fe80::1"));
        // An IPv4 network does not contain IPv6 addresses that embed its addresses.
        assert!(!has("127.0.0.0/8", "::ffff:127.0.0.1"));
        for wrong in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "host", "10.0.0.0/", "1.1.1.1/-1"] {
            assert!(Net::parse(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn nothing_that_the_standard_library_calls_private_is_public(bits: u32) {
            let address = Ipv4Addr::from_bits(bits);
            let special = address.is_private() || address.is_loopback() || address.is_link_local()
                || address.is_multicast() || address.is_unspecified() || address.is_broadcast()
                || address.is_documentation();
            prop_assert!(!(special && is_public(address.into())));
            prop_assert!(!is_public(address.to_ipv6_mapped().into()));
            prop_assert!(!is_public(address.to_ipv6_compatible().into()));
        }
    }
}

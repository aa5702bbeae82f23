//! Whether an address is on this machine. Connections to other machines should be encrypted.

/// Whether the address is on this machine, where nobody else can listen.
pub(super) fn is_local(address: &str) -> bool {
    address.eq_ignore_ascii_case("localhost")
        || address.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// The host of `host:port`, `protocol://host:port` or `[address]:port`.
pub(super) fn host(server: &str) -> &str {
    let server = server.rsplit_once("://").map_or(server, |(_, server)| server);
    match server.strip_prefix('[').and_then(|server| server.split_once(']')) {
        Some((address, _)) => address,
        None => server.rsplit_once(':').map_or(server, |(host, _)| host),
    }
}

//! The sockets that the endpoint listens on: a name stands for all of its addresses, `localhost` for both loopback addresses, and `[::]`
//! for every address of the machine.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

/// Binds the addresses of `listen`, host and port. There is at least one.
///
/// # Errors
/// The machine has none of these addresses, or one is in use.
pub(super) fn bind(listen: &str) -> io::Result<Vec<TcpListener>> {
    let mut addresses: Vec<SocketAddr> = listen.to_socket_addrs()?.collect();
    if let Some(first) = addresses.first().filter(|_| listen.starts_with("localhost:")) {
        // many machines have only one of the two in /etc/hosts
        let port = first.port();
        addresses = vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()];
    }
    addresses.dedup();
    let (mut bound, mut absent): (Vec<TcpListener>, _) = (Vec::new(), io::ErrorKind::AddrNotAvailable.into());
    for mut address in addresses {
        if let Some(first) = bound.first() {
            // the system may have chosen it
            address.set_port(first.local_addr()?.port());
        }
        match bind_one(address) {
            Ok(listener) => bound.push(listener),
            Err(error) if is_absent(&error) => absent = error,
            Err(error) => return Err(error),
        }
    }
    if bound.is_empty() { Err(absent) } else { Ok(bound) }
}

fn bind_one(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = match TcpListener::bind(address) {
        // `[::]` on a machine without IPv6
        Err(error) if address.ip().is_unspecified() && is_absent(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))
        }
        bound => bound,
    };
    bound.and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    })
}

/// Whether the machine lacks the address, or every address of its kind.
fn is_absent(error: &io::Error) -> bool {
    /// `EAFNOSUPPORT`
    const NO_SUCH_FAMILY: i32 = 97;
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(NO_SUCH_FAMILY)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn each_form_is_reached_by_the_addresses_that_it_stands_for() {
        let (v4, v6) = ("127.0.0.1", "[::1]");
        let has_v6 = TcpListener::bind("[::1]:0").is_ok();
        for (host, at) in [
            ("127.0.0.1", &[v4][..]),
            ("0.0.0.0", &[v4]),
            ("[::]", &[v4, v6]),
            ("[::1]", &[v6]),
            ("localhost", &[v4, v6]),
        ] {
            if host == "[::1]" && !has_v6 {
                continue;
            }
            let listeners = bind(&format!("{host}:0")).unwrap();
            let port = listeners[0].local_addr().unwrap().port();
            for address in [v4, v6].into_iter().filter(|address| has_v6 || *address == v4) {
                let reached = TcpStream::connect(format!("{address}:{port}")).is_ok();
                assert_eq!(reached, at.contains(&address), "{host} at {address}");
            }
        }
    }

    #[test]
    fn an_address_in_use_is_an_error_whichever_of_a_name_it_is() {
        for taken in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(other) = TcpListener::bind(taken) else { continue };
            let port = other.local_addr().unwrap().port();
            let error = bind(&format!("localhost:{port}")).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{taken}");
        }
        let error = bind("192.0.2.1:0").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }
}

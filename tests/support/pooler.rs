//! A pooler of connections, as far as it differs from the server.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// A proxy that refuses connections with this startup parameter as PgBouncer does. Returns its port.
pub(crate) fn pooler(to: String, refused: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, to) = (client.unwrap(), to.clone());
            std::thread::spawn(move || {
                let mut startup = [0; 4096];
                let length = client.read(&mut startup).unwrap();
                let startup = &startup[..length];
                if startup.split(|byte| *byte == 0).any(|part| part == refused.as_bytes()) {
                    let fields = format!("SFATAL\0C08P01\0Munsupported startup parameter: {refused}\0\0");
                    let length = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
                    return client.write_all(&[b"E", &length[..], fields.as_bytes()].concat()).unwrap();
                }
                let mut server = TcpStream::connect(to).unwrap();
                server.write_all(startup).unwrap();
                let (mut from, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut back));
                let _ = std::io::copy(&mut client, &mut server);
            });
        }
    });
    port
}

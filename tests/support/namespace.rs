//! A network namespace for the router, with a single link that can be taken down. The kernel then drops packets on both sides,
//! which no proxy can do.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::process;

/// The MAC address of this side's end of the link.
const MAC: &str = "02:00:00:00:00:01";

/// A network namespace with a link to this one. Deleted on drop.
pub(crate) struct Namespace {
    name: String,
    /// This side's end of the link.
    link: String,
    /// This side's address, the only one that can be reached from inside.
    pub(crate) host: [u8; 4],
}

impl Namespace {
    /// `None`, after printing the reason, if this process may not create one.
    pub(crate) fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = format!("{:x}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // a block of four private addresses
        let (third, fourth) = (rand::random::<u8>(), rand::random::<u8>() & 0xfc);
        let host = [10, 213, third, fourth | 1];
        let namespace = Namespace { name: format!("outbox-{number}"), link: format!("o{number}"), host };
        if let Err(reason) = ip(&["netns", "add", &namespace.name]) {
            println!("skipped: a network namespace is not permitted here: {reason}");
            return None;
        }
        let (name, link) = (&namespace.name, &namespace.link);
        let gateway = std::net::Ipv4Addr::from(host).to_string();
        let address = |last: u8| format!("10.213.{third}.{}/30", fourth | last);
        for arguments in [
            &["link", "add", link, "type", "veth", "peer", "name", "out", "netns", name][..],
            &["addr", "add", &address(1), "dev", link],
            &["link", "set", link, "address", MAC],
            &["link", "set", link, "up"],
            &["-n", name, "addr", "add", &address(2), "dev", "out"],
            &["-n", name, "link", "set", "out", "up"],
            &["-n", name, "link", "set", "lo", "up"],
            // a permanent entry, because a neighbour that does not answer ARP causes "no route to host"
            &["-n", name, "neigh", "add", &gateway, "lladdr", MAC, "dev", "out", "nud", "permanent"],
        ] {
            if let Err(reason) = ip(arguments) {
                println!("skipped: a link to a network namespace is not permitted here: {reason}");
                return None;
            }
        }
        Some(namespace)
    }

    /// The words that precede a command that is to run inside.
    pub(crate) fn prefix(&self) -> [&str; 4] {
        [program(), "netns", "exec", &self.name]
    }

    /// Takes the link down. Packets are lost silently.
    pub(crate) fn down(&self) {
        ip(&["link", "set", &self.link, "down"]).unwrap();
    }

    /// Takes the link up again.
    pub(crate) fn up(&self) {
        ip(&["link", "set", &self.link, "up"]).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // some of it is missing if `new` failed
        let _ = ip(&["link", "delete", &self.link]);
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

/// The path of `ip`, which Debian does not put into the PATH of ordinary users.
fn program() -> &'static str {
    ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists())
        .unwrap_or("ip")
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new(program());
    command.args(arguments);
    if !std::path::Path::new(program()).exists() {
        return Err("there is no ip (package iproute2)".to_owned());
    }
    let output = process::output(&mut command);
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

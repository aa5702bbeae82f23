//! The memory, CPU time and ports of a process, from `/proc`.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use anyhow::Context;

/// `USER_HZ`, the unit of times in `/proc/PID/stat`: the same on every architecture that Rust supports.
const TICKS_PER_SECOND: u64 = 100;

/// Its peak memory in bytes: `VmHWM`.
pub(crate) fn peak_memory(process: u32) -> anyhow::Result<u64> {
    let status = read(process, "status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().context("VmHWM")?;
    Ok(kilobytes * 1024)
}

/// The user and system time of all its threads.
pub(crate) fn cpu_time(process: u32) -> anyhow::Result<Duration> {
    cpu_time_in(&read(process, "stat")?)
}

/// The local ports of its TCP sockets over IPv4.
pub(crate) fn tcp_ports(process: u32) -> anyhow::Result<HashSet<u16>> {
    let folder = format!("/proc/{process}/fd");
    let mut sockets = HashSet::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("read {folder}"))? {
        // a descriptor may have been closed meanwhile
        let Ok(target) = fs::read_link(entry?.path()) else { continue };
        let target = target.to_string_lossy();
        let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        sockets.extend(inode.map(str::to_owned));
    }
    let table = read(process, "net/tcp")?;
    // the second field is address:port in hexadecimal, the tenth the inode
    let ports = table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace();
        let port = fields.nth(1)?.split(':').nth(1)?;
        let port = u16::from_str_radix(port, 16).ok()?;
        fields.nth(7).is_some_and(|inode| sockets.contains(inode)).then_some(port)
    });
    Ok(ports.collect())
}

fn read(process: u32, file: &str) -> anyhow::Result<String> {
    let path = format!("/proc/{process}/{file}");
    fs::read_to_string(&path).with_context(|| format!("read {path}"))
}

fn cpu_time_in(stat: &str) -> anyhow::Result<Duration> {
    // the second field is the program's name in parentheses, which may contain spaces; the times are fields 14 and 15
    let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
    let times: Vec<u64> =
        fields.split_whitespace().skip(11).take(2).map_while(|time| time.parse().ok()).collect();
    anyhow::ensure!(times.len() == 2, "no times in stat");
    Ok(Duration::from_millis(times.iter().sum::<u64>() * 1000 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_ports_of_open_sockets() -> anyhow::Result<()> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        assert!(tcp_ports(std::process::id())?.contains(&port));
        drop(listener);
        assert!(!tcp_ports(std::process::id())?.contains(&port));
        Ok(())
    }

    #[test]
    fn cpu_time_is_the_sum_of_user_and_system() -> anyhow::Result<()> {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194304 100 0 0 0 250 30 9 9 20 0 5 0 100 0 0";
        assert_eq!(cpu_time_in(stat)?, Duration::from_millis(2800));
        assert!(cpu_time_in("7 (a) S 1").is_err());
        Ok(())
    }
}

//! Tells systemd about the router, where it asks for that with `NOTIFY_SOCKET` (sd_notify(3)).

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
#[cfg(target_os = "linux")]
use std::os::linux::net::SocketAddrExt;
#[cfg(target_os = "linux")]
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::monitor::Monitors;

/// How often the state is compared with the one that systemd shows.
const INTERVAL: Duration = Duration::from_secs(1);

/// The shortest interval, whatever `WatchdogSec` is.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// What systemd asks for.
#[derive(Debug, Default)]
struct Wanted {
    socket: Option<OsString>,
    /// `WatchdogSec` of the unit.
    watchdog: Option<Duration>,
}

impl Wanted {
    /// As the environment of this process says.
    fn by_environment() -> Self {
        let number = |name| env::var(name).ok()?.parse::<u64>().ok();
        let other = number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(process::id()));
        Wanted {
            socket: env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()),
            watchdog: number("WATCHDOG_USEC").filter(|usec| !other && *usec > 0).map(Duration::from_micros),
        }
    }
}

/// Tells systemd that the service has started, and from then on its state. As long as every main loop runs, it also pings the
/// watchdog. At `stop`, tells that the service is stopping. `None` if nobody listens.
pub fn notify(monitors: Monitors, stop: CancellationToken) -> Option<AbortOnDropHandle<()>> {
    let wanted = Wanted::by_environment();
    let socket = wanted.socket?;
    let mut notifier = match Notifier::new(&socket, monitors, wanted.watchdog.is_some()) {
        Ok(notifier) => notifier,
        Err(error) => {
            tracing::warn!(%error, "systemd cannot be notified at NOTIFY_SOCKET");
            return None;
        }
    };
    // sd_watchdog_enabled(3) recommends half of the limit
    let interval = wanted.watchdog.map_or(INTERVAL, |limit| INTERVAL.min(limit / 2).max(MIN_INTERVAL));
    notifier.say("READY=1");
    // a single router runs on this thread too, so nothing is sent while it is stuck
    Some(AbortOnDropHandle::new(tokio::spawn(async move {
        while stop.run_until_cancelled(tokio::time::sleep(interval)).await.is_some() {
            notifier.report();
        }
        notifier.say("STOPPING=1");
        loop {
            tokio::time::sleep(interval).await;
            notifier.report();
        }
    })))
}

/// The connection to systemd.
struct Notifier {
    socket: UnixDatagram,
    to: SocketAddr,
    monitors: Monitors,
    has_watchdog: bool,
    /// That the service has started, or is stopping, until it is sent.
    due: Option<&'static str>,
    /// The state that systemd shows.
    shown: String,
}

impl Notifier {
    /// `path` begins with `@` if the socket is in the abstract name space.
    fn new(path: &OsStr, monitors: Monitors, has_watchdog: bool) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        let to = match path.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(path)?,
        };
        #[cfg(not(target_os = "linux"))]
        let to = SocketAddr::from_pathname(path)?;
        let socket = UnixDatagram::unbound()?;
        // the loop must not wait for systemd
        socket.set_nonblocking(true)?;
        Ok(Notifier { socket, to, monitors, has_watchdog, due: None, shown: String::new() })
    }

    /// Sends a message, now or with a later report.
    fn say(&mut self, message: &'static str) {
        self.due = Some(message);
        self.report();
    }

    /// Sends what is due, the state if it has changed, and a sign of life if every main loop runs.
    fn report(&mut self) {
        if let Some(message) = self.due
            && self.send(message)
        {
            self.due = None;
        }
        // a line break would begin another variable
        let state = self.monitors.readiness().text.replace('\n', " ");
        if state != self.shown && self.send(&format!("STATUS={state}")) {
            self.shown = state;
        }
        if self.has_watchdog && self.monitors.health().ok {
            // the next one follows soon
            self.send("WATCHDOG=1");
        }
    }

    /// Returns whether the message is sent. It is not while systemd does not read, because the socket is full then.
    fn send(&self, message: &str) -> bool {
        match self.socket.send_to_addr(message.as_bytes(), &self.to) {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(%error, message, "systemd was not notified");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::{MAIN_LOOP_TIMEOUT, Monitor, State};

    /// What was received so far.
    fn received(socket: &UnixDatagram) -> Vec<String> {
        let mut messages = Vec::new();
        let mut buffer = [0; 1024];
        while let Ok(size) = socket.recv(&mut buffer) {
            messages.push(String::from_utf8_lossy(&buffer[..size]).into_owned());
        }
        messages
    }

    #[test]
    fn the_watchdog_hears_nothing_while_the_loop_of_one_shard_is_stuck() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let ((first, clock), (second, other_clock)) =
            (Monitor::for_test("shop/0"), Monitor::for_test("shop/1"));
        let monitors = Monitors::for_shards("shop", vec![first.clone(), second.clone()]);
        let mut notifier = Notifier::new(path.as_os_str(), monitors, true).unwrap();
        notifier.report();
        assert_eq!(received(&socket), ["STATUS=starting", "WATCHDOG=1"]);
        first.state(State::Active);
        for clock in [&clock, &other_clock] {
            clock.advance(MAIN_LOOP_TIMEOUT * 2);
        }
        first.main_loop_ran();
        notifier.report();
        assert_eq!(received(&socket), ["STATUS=shop/0 active; shop/1 starting"]);
        second.main_loop_ran();
        second.state(State::Waiting { reason: "another router\nreads the slot".to_owned() });
        notifier.report();
        notifier.report();
        let waiting = "STATUS=shop/0 active; shop/1 waiting: another router reads the slot";
        assert_eq!(received(&socket), [waiting, "WATCHDOG=1", "WATCHDOG=1"]);
    }

    #[test]
    fn what_could_not_be_sent_is_sent_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let monitors = Monitors::from(Monitor::for_test("shop").0);
        let mut notifier = Notifier::new(path.as_os_str(), monitors, false).unwrap();
        notifier.say("READY=1");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        notifier.report();
        notifier.report();
        assert_eq!(received(&socket), ["READY=1", "STATUS=starting"]);
    }
}

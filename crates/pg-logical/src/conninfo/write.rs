//! Writes a [`ConnInfo`] as a URI for people to read, without the password.

use std::path::Path;
use std::time::Duration;

use super::resolve::{CHANNEL_BINDINGS, SESSION_ATTRS, SSL_MODES};
use super::uri::encode;
use super::{ChannelBinding, ConnInfo, Host, HostAddr, Password, RootCert, TargetSessionAttrs};
use crate::secret::REDACTED;

impl ConnInfo {
    /// A URI that reads back to the same, except that a password is replaced by asterisks, and a password file or program is left out.
    pub fn to_redacted_uri(&self) -> String {
        let mut uri = format!("postgres://{}", encode(&self.user));
        if matches!(self.password, Some(Password::Given(_))) {
            uri.push(':');
            uri.push_str(REDACTED);
        }
        uri.push('@');
        let hosts: Vec<String> = self.hosts.iter().map(authority).collect();
        uri.push_str(&hosts.join(","));
        uri.push('/');
        uri.push_str(&encode(&self.dbname));
        let query: Vec<String> =
            self.query().into_iter().map(|(name, value)| format!("{name}={}", encode(&value))).collect();
        uri.push('?');
        uri.push_str(&query.join("&"));
        uri
    }

    fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = Vec::new();
        let path = |path: &Path| path.display().to_string();
        if self.hosts.iter().any(|host| hostaddr(host).is_some()) {
            let addresses: Vec<&str> =
                self.hosts.iter().map(|host| hostaddr(host).unwrap_or_default()).collect();
            query.push(("hostaddr", addresses.join(",")));
        }
        query.push(("sslmode", name_of(&SSL_MODES, self.ssl_mode)));
        match &self.ssl_root_cert {
            Some(RootCert::System) => query.push(("sslrootcert", "system".to_owned())),
            Some(RootCert::File(file)) => query.push(("sslrootcert", path(file))),
            None => {}
        }
        if let Some((cert, key)) = &self.ssl_client {
            query.push(("sslcert", path(cert)));
            query.push(("sslkey", path(key)));
        }
        if self.channel_binding != ChannelBinding::Prefer {
            query.push(("channel_binding", name_of(&CHANNEL_BINDINGS, self.channel_binding)));
        }
        if self.target_session_attrs != TargetSessionAttrs::Any {
            query.push(("target_session_attrs", name_of(&SESSION_ATTRS, self.target_session_attrs)));
        }
        if let Some(file) = &self.passfile {
            query.push(("passfile", path(file)));
        }
        let seconds = |duration: Duration| duration.as_secs().to_string();
        let tcp = &self.tcp;
        let optional = [
            ("connect_timeout", self.connect_timeout.map(seconds)),
            ("application_name", self.application_name.clone()),
            ("options", self.options.clone()),
            ("keepalives", (!tcp.keepalives).then(|| "0".to_owned())),
            ("keepalives_idle", tcp.keepalives_idle.map(seconds)),
            ("keepalives_interval", tcp.keepalives_interval.map(seconds)),
            ("keepalives_count", tcp.keepalives_count.map(|count| count.to_string())),
            ("tcp_user_timeout", tcp.tcp_user_timeout.map(|timeout| timeout.as_millis().to_string())),
        ];
        query.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
        query
    }
}

fn authority(host: &Host) -> String {
    let name = match &host.addr {
        HostAddr::Unix(directory) => encode(&directory.display().to_string()),
        HostAddr::Tcp { name, .. } if name.contains(':') => format!("[{}]", encode(name).replace("%3A", ":")),
        HostAddr::Tcp { name, .. } => encode(name),
    };
    format!("{name}:{}", host.port)
}

fn hostaddr(host: &Host) -> Option<&str> {
    match &host.addr {
        HostAddr::Tcp { hostaddr, .. } => hostaddr.as_deref(),
        HostAddr::Unix(_) => None,
    }
}

fn name_of<T: PartialEq>(choices: &[(&str, T)], value: T) -> String {
    choices
        .iter()
        .find(|(_, choice)| *choice == value)
        .map_or_else(String::new, |(name, _)| (*name).to_owned())
}

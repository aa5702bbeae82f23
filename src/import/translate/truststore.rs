//! The authorities that a client trusts. Java has its own formats, while OpenSSL reads PEM.

use super::Translation;
use crate::import::findings::Level;
use crate::import::settings::Setting;
use crate::import::write::{Section, key, literal};

/// The settings of one truststore.
pub(super) struct Truststore {
    pub(super) kind: Option<Setting>,
    pub(super) certificates: Option<Setting>,
    pub(super) location: Option<Setting>,
}

/// Writes the authorities as librdkafka's properties `<server>.ca.pem` and `<server>.ca.location`; `file` stands for a store that has
/// to be exported first.
pub(super) fn translate(translation: &mut Translation, store: Truststore, server: &str, file: &str) {
    let Truststore { kind, certificates, location } = store;
    if let Some(setting) = &certificates {
        let property = key(&format!("{server}.ca.pem"));
        translation.set(Section::Kafka, property, literal(&setting.value), setting);
    }
    let property = format!("{server}.ca.location");
    let location = location.and_then(|setting| translation.for_key(setting, Section::Kafka, &property));
    let Some(setting) = location.filter(|_| certificates.is_none()) else { return };
    let is_pem =
        kind.is_some_and(|kind| kind.value.eq_ignore_ascii_case("PEM")) || setting.value.ends_with(".pem");
    let named = if is_pem { &setting.value } else { file };
    translation.set(Section::Kafka, key(&property), literal(named), &setting);
    if !is_pem {
        let meaning = format!(
            "OpenSSL reads PEM: `keytool -exportcert -rfc -keystore STORE -alias CA -file {file}`, one after the other if there are \
             several, and name that file"
        );
        translation.find(Level::ToDo, &setting, meaning);
    }
}

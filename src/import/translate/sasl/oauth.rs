//! OAuth: the router gets its tokens by the client credentials grant, as Kafka's own `OAuthBearerLoginCallbackHandler` does.

use super::{JAAS, Jaas};
use crate::config::kafka_properties::is_built_with;
use crate::import::findings::Level;
use crate::import::reference::Reference;
use crate::import::settings::{Setting, Settings};
use crate::import::translate::truststore::{self, Truststore};
use crate::import::translate::{Translation, variable};
use crate::import::write::{Section, key, quoted};

const URL: &str = "sasl.oauthbearer.token.endpoint.url";
const HANDLER: &str = "sasl.login.callback.handler.class";
const RETRIEVER: &str = "sasl.oauthbearer.jwt.retriever.class";

/// librdkafka's properties, and from Kafka 4.1 on those of the Java client.
const ID: (&str, &str) = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id");
const SECRET: (&str, &str) =
    ("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret");
const SCOPE: &str = "sasl.oauthbearer.scope";

/// Where the id and the secret of the client are.
pub(super) enum Client {
    /// In these settings. The scope is optional.
    Given {
        id: Setting,
        secret: Setting,
        scope: Option<Setting>,
        extensions: Option<Setting>,
        /// Of the token server's certificate; Java has other settings for those of the brokers.
        truststore: Box<Truststore>,
    },
    /// In a login that is stored elsewhere.
    Elsewhere(Setting),
}

/// Reads the client, or says why the router cannot log in like it.
pub(super) fn read(translation: &Translation, producer: &Settings) -> Result<Client, (Level, String)> {
    if !is_built_with("oidc") {
        let meaning =
            "OAUTHBEARER needs a router that was built with libcurl; import the file again with that one";
        return Err((Level::ToDo, meaning.to_owned()));
    }
    let foreign = [HANDLER, RETRIEVER].into_iter().filter_map(|name| producer.get(name)).find(|setting| {
        let own = ["OAuthBearerLoginCallbackHandler", "DefaultJwtRetriever", "ClientCredentialsJwtRetriever"];
        !setting.value.starts_with("org.apache.kafka.") || !own.iter().any(|own| setting.value.ends_with(own))
    });
    if let Some(Setting { value, .. }) = foreign {
        let meaning = format!(
            "The router gets its tokens by the client credentials grant of OAuth and does not run {value}: use SCRAM or TLS \
             certificates"
        );
        return Err((Level::NoEquivalent, meaning));
    }
    if producer.get(URL).is_none_or(|url| url.value.starts_with("file:")) {
        let meaning = format!("The router gets its tokens from a server, and {URL} has no URL of one");
        return Err((Level::NoEquivalent, meaning));
    }
    let jaas = producer.get(JAAS);
    if let Some(jaas) = jaas
        && matches!(translation.reference(jaas), Some(reference) if !matches!(reference, Reference::Other(_)))
    {
        return Ok(Client::Elsewhere(jaas.clone()));
    }
    let login = jaas
        .and_then(|jaas| Jaas::parse(&jaas.value))
        .filter(|login| login.class() == "OAuthBearerLoginModule");
    let of_login = |option: &str| {
        let (login, jaas) = login.as_ref().zip(jaas)?;
        Some(Setting { name: jaas.name.clone(), value: login.get(option)? })
    };
    let member = |option: &str, property: &str| producer.get(property).cloned().or_else(|| of_login(option));
    let (Some(id), Some(secret)) = (member("clientId", ID.1), member("clientSecret", SECRET.1)) else {
        let meaning = format!("The router logs in with the id and secret of a client, and {JAAS} has none");
        return Err((Level::NoEquivalent, meaning));
    };
    let extensions = login.as_ref().map(Jaas::extensions).filter(|extensions| !extensions.is_empty());
    let extensions = extensions.zip(jaas).map(|(value, jaas)| Setting { name: jaas.name.clone(), value });
    let truststore = Box::new(Truststore {
        kind: of_login("ssl.truststore.type"),
        certificates: of_login("ssl.truststore.certificates"),
        location: of_login("ssl.truststore.location"),
    });
    Ok(Client::Given { id, secret, scope: member("scope", SCOPE), extensions, truststore })
}

/// Writes what librdkafka needs. The mechanism is among the properties with the same name.
pub(super) fn write(translation: &mut Translation, producer: &mut Settings, client: Client) {
    if let Some(mechanism) = producer.get("sasl.mechanism").cloned() {
        translation.set(Section::Kafka, key("sasl.oauthbearer.method"), quoted("oidc"), &mechanism);
    }
    if let Some(url) = producer.take(URL) {
        // a URL may contain a password
        if url.value.contains('@') {
            translation.secret(URL, &url);
        } else {
            text(translation, URL, url);
        }
    }
    match client {
        Client::Given { id, secret, scope, extensions, truststore } => {
            text(translation, ID.0, id);
            translation.secret(SECRET.0, &secret);
            scope.into_iter().for_each(|scope| text(translation, SCOPE, scope));
            let name = "sasl.oauthbearer.extensions";
            extensions.into_iter().for_each(|extensions| text(translation, name, extensions));
            truststore::translate(translation, *truststore, "https", "token_server_ca.pem");
        }
        Client::Elsewhere(jaas) => {
            let variable = |property| variable(Section::Kafka, property);
            let meaning = format!(
                "It is stored elsewhere: start the router with {} set to its clientId, and {} to its clientSecret",
                variable(ID.0),
                variable(SECRET.0)
            );
            translation.variables.extend([variable(ID.0), variable(SECRET.0)]);
            translation.find(Level::ToDo, &jaas, meaning);
        }
    }
    for name in [JAAS, HANDLER, RETRIEVER, ID.1, SECRET.1, SCOPE] {
        producer.take(name);
    }
    for prefix in ["sasl.oauthbearer.", "sasl.login."] {
        let meaning = "Only concerns how Java gets and checks its tokens";
        translation.find_all(Level::Ignored, producer.take_prefix(prefix), meaning);
    }
}

fn text(translation: &mut Translation, property: &str, setting: Setting) {
    if let Some(setting) = translation.for_key(setting, Section::Kafka, property) {
        translation.text(Section::Kafka, &key(property), &setting);
    }
}

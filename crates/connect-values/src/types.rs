//! The representation of a column's type in Kafka Connect.

/// How Debezium represents a column's type (`PostgresValueConverter`, with `time.precision.mode=adaptive`,
/// `decimal.handling.mode=precise`, `binary.handling.mode=bytes`, `interval.handling.mode=numeric`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectType {
    pub(crate) scalar: Scalar,
    pub(crate) array: bool,
}

/// The representation of a value, or of an array's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar {
    Boolean,
    /// Of two, four or eight bytes, which have the same text.
    Integer,
    Float32,
    Float64,
    /// `Decimal`, with its scale.
    Decimal(u16),
    /// `VariableScaleDecimal`: a `numeric` without scale.
    VariableDecimal,
    /// `Decimal` of scale 2.
    Money,
    /// Days since 1970-01-01.
    Date,
    /// Since 1970-01-01.
    Timestamp(Unit),
    /// ISO 8601 in UTC, with a fraction of this many digits; 0: as many as needed.
    TimestampTz(u8),
    /// Since midnight.
    Time(Unit),
    /// Since midnight, in whole milliseconds, because arrays contain `java.sql.Time`.
    TimeInArray(Unit),
    /// ISO 8601 in UTC.
    TimeTz,
    /// The same without a fraction, for arrays.
    TimeTzInArray,
    /// Microseconds, with months of 30.4375 days.
    Interval,
    /// One bit, as a boolean.
    Bit,
    /// Several bits, as bytes; the last bit is the lowest bit of the first byte.
    Bits,
    Bytes,
    /// `io.debezium.data.geometry.Point`.
    Point,
    /// A string with a JSON object of its pairs.
    Hstore,
    /// As Postgres prints it.
    String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Milliseconds,
    Microseconds,
}

/// The OID, the OID of the array type (0: Debezium leaves such columns out), and the name in `pg_type`. All other types are
/// strings.
const TYPES: &[(u32, u32, &str)] = &[
    (16, 1000, "bool"),
    (17, 1001, "bytea"),
    (18, 1002, "char"),
    (20, 1016, "int8"),
    (21, 1005, "int2"),
    (23, 1007, "int4"),
    (25, 1009, "text"),
    (26, 1028, "oid"),
    (114, 199, "json"),
    (142, 0, "xml"),
    (600, 0, "point"),
    (650, 651, "cidr"),
    (700, 1021, "float4"),
    (701, 1022, "float8"),
    (774, 775, "macaddr8"),
    (790, 0, "money"),
    (829, 1040, "macaddr"),
    (869, 1041, "inet"),
    (1042, 1014, "bpchar"),
    (1043, 1015, "varchar"),
    (1082, 1182, "date"),
    (1083, 1183, "time"),
    (1114, 1115, "timestamp"),
    (1184, 1185, "timestamptz"),
    (1186, 0, "interval"),
    (1266, 1270, "timetz"),
    (1560, 0, "bit"),
    (1562, 0, "varbit"),
    (1700, 1231, "numeric"),
    (2950, 2951, "uuid"),
    (3614, 3643, "tsvector"),
    (3802, 3807, "jsonb"),
    (3904, 3905, "int4range"),
    (3906, 3907, "numrange"),
    (3908, 3909, "tsrange"),
    (3910, 3911, "tstzrange"),
    (3912, 3913, "daterange"),
    (3926, 3927, "int8range"),
];

impl ConnectType {
    /// Text as Postgres prints it.
    pub const STRING: ConnectType = ConnectType { scalar: Scalar::String, array: false };

    /// Bytes.
    pub const BYTES: ConnectType = ConnectType { scalar: Scalar::Bytes, array: false };

    /// For the type OID and type modifier (-1: none) of a Relation message. Types that are not built in, and those that
    /// Debezium leaves out, are strings.
    pub fn of(type_oid: u32, type_modifier: i32) -> ConnectType {
        TYPES
            .iter()
            .find_map(|&(oid, array_oid, name)| match type_oid {
                0 => None,
                _ if oid == type_oid => Some((name, false)),
                _ if array_oid == type_oid => Some((name, true)),
                _ => None,
            })
            .map_or(ConnectType::STRING, |(name, array)| ConnectType::new(name, array, type_modifier))
    }

    /// For the name of a user-defined type. The names of array types begin with `_`, but those of other types may too, so a
    /// text that is not an array is written as a string.
    pub fn user_defined(name: &str) -> ConnectType {
        let (element, array) = element(name);
        let scalar = if element == "hstore" { Scalar::Hstore } else { Scalar::String };
        ConnectType { scalar, array }
    }

    /// Whether keys, headers and JSON strings contain the text of Postgres unchanged.
    pub fn is_string(self) -> bool {
        self == ConnectType::STRING
    }

    /// Whether equal keys of this type have equal texts in Kafka Connect; if not, [`write_key`] refuses them.
    ///
    /// [`write_key`]: crate::write_key
    pub fn has_key_text(self) -> bool {
        !matches!(self.scalar, Scalar::VariableDecimal | Scalar::Bits | Scalar::Bytes | Scalar::Point)
    }

    fn new(name: &str, array: bool, modifier: i32) -> ConnectType {
        let scalar = match name {
            "bool" => Scalar::Boolean,
            "int2" | "int4" | "int8" | "oid" => Scalar::Integer,
            "float4" => Scalar::Float32,
            "float8" => Scalar::Float64,
            "numeric" if modifier < 4 => Scalar::VariableDecimal,
            // in Debezium's driver, a negative scale -n becomes a scale of 2048 - n
            "numeric" => Scalar::Decimal(((modifier - 4) & 0x7ff) as u16),
            "money" => Scalar::Money,
            "date" => Scalar::Date,
            "timestamp" => Scalar::Timestamp(unit(modifier)),
            "timestamptz" => Scalar::TimestampTz(u8::try_from(modifier).map_or(6, |digits| digits.min(6))),
            "time" if array => Scalar::TimeInArray(unit(modifier)),
            "time" => Scalar::Time(unit(modifier)),
            "timetz" if array => Scalar::TimeTzInArray,
            "timetz" => Scalar::TimeTz,
            "interval" => Scalar::Interval,
            "bit" if modifier <= 1 => Scalar::Bit,
            "varbit" if modifier == 1 => Scalar::Bit,
            "bit" | "varbit" => Scalar::Bits,
            "bytea" => Scalar::Bytes,
            "point" => Scalar::Point,
            _ => Scalar::String,
        };
        ConnectType { scalar, array }
    }
}

/// `adaptive`: milliseconds if the column's precision is three digits or less.
fn unit(modifier: i32) -> Unit {
    if (0..=3).contains(&modifier) { Unit::Milliseconds } else { Unit::Microseconds }
}

/// The OID of a type in `pg_catalog` by its name. For a domain, the Type message of pgoutput has the name of the base type,
/// but not the domain's type modifier, so a `numeric` has no scale.
pub fn oid_of(name: &str) -> Option<u32> {
    let (element, array) = element(name);
    let (oid, array_oid, _) = TYPES.iter().find(|(_, _, listed)| *listed == element)?;
    let oid = if array { *array_oid } else { *oid };
    (oid != 0).then_some(oid)
}

/// Whether the representation of this type, or of arrays of it, depends on the type modifier so much that a value would be written as
/// one of another type without it.
pub fn needs_modifier(name: &str) -> bool {
    matches!(element(name).0, "numeric" | "bit" | "varbit")
}

/// The name of the element type, and whether the type may be an array.
fn element(name: &str) -> (&str, bool) {
    name.strip_prefix('_').map_or((name, false), |element| (element, true))
}

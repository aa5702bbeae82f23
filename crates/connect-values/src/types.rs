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
    /// With two, four or eight bytes: the text is the same.
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
    /// ISO 8601 in UTC with this many digits of a fraction; 0: as many as needed.
    TimestampTz(u8),
    /// Since midnight.
    Time(Unit),
    /// Since midnight, in milliseconds only, because arrays contain `java.sql.Time`.
    TimeInArray(Unit),
    /// ISO 8601 in UTC.
    TimeTz,
    /// The same without a fraction, in arrays.
    TimeTzInArray,
    /// Microseconds, with months of 30.4375 days.
    Interval,
    /// One bit, as a boolean.
    Bit,
    /// Bytes, beginning with the last bit.
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

/// The OID, the OID of the array type (0: Debezium leaves such columns out), and the name in `pg_type`. Everything else is a
/// string.
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

    /// From a Relation message's type OID and type modifier (-1: none). Types that are not built in, and those that Debezium
    /// leaves out, are strings.
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

    /// From the name of a type that does not belong to Postgres. The name of an array type begins with `_`, but so may that
    /// of another type, so a text that is no array counts as a string.
    pub fn of_own(name: &str) -> ConnectType {
        let (element, array) = element(name);
        let scalar = if element == "hstore" { Scalar::Hstore } else { Scalar::String };
        ConnectType { scalar, array }
    }

    /// Whether keys, headers and JSON strings contain the text of Postgres unchanged.
    pub fn is_string(self) -> bool {
        self == ConnectType::STRING
    }

    /// Whether a key of this type is the same text each time in Kafka Connect; if not, [`write_key`] refuses it.
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
            // as in Debezium's driver, a negative scale -n becomes 2048 - n zeros after the point
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

/// The OID of a type in `pg_catalog` by its name, which a Type message of pgoutput gives for the base type of a domain. The
/// domain's own type modifier is not in the stream, so a `numeric` then has no scale.
pub fn oid_of(name: &str) -> Option<u32> {
    let (element, array) = element(name);
    let (oid, array_oid, _) = TYPES.iter().find(|(_, _, listed)| *listed == element)?;
    let oid = if array { *array_oid } else { *oid };
    (oid != 0).then_some(oid)
}

/// The name of the element type, and whether the type is an array at all.
fn element(name: &str) -> (&str, bool) {
    name.strip_prefix('_').map_or((name, false), |element| (element, true))
}

//! JSON payloads as Debezium's `table.expand.json.payload` and `JsonConverter` write them.
//!
//! Debezium infers a Connect schema from each document (`JsonSchemaData`) and writes the document by it. A member that is null
//! or an empty array has no type and is left out. Numbers become integers of 32 or 64 bits or doubles. The elements of an array
//! must be of one kind, and its objects get all members that any of them has. A document without a schema stays a string.

mod members;
mod scan;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::mem::{Discriminant, discriminant};

use crate::float;
use crate::json::write_json_string;
use members::Members;
use scan::Node;

/// What happens to members without a type. By default they are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Behaviour {
    /// `table.json.payload.null.behavior` is `optional_bytes`: a null stays a null.
    pub keep_nulls: bool,
    /// `table.json.payload.empty.array.behavior`, in versions after 3.4, is `optional_string`: an empty array stays.
    pub keep_empty_arrays: bool,
}

/// Why Debezium finds a schema for a document but fails to write it, which stops its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unexpandable {
    /// An integer that needs more than 64 bits.
    #[error("contains an integer of more than 64 bits, which cannot be expanded")]
    Integer,
    /// Array elements that differ: objects in the type of a member, arrays in the type of their elements, or objects in their
    /// members while there is a null among them.
    #[error("contains an array whose elements have different types, which cannot be expanded")]
    Mixed,
}

/// Writes a payload as a JSON value. A text that is neither object nor array, is not JSON, or has no schema becomes a JSON
/// string. A top-level array is written like a nested one; Debezium 3.4 stops at it. The objects of an array have their members
/// in the order of their first occurrence. In Debezium that order differs between processes, and so does the choice between two
/// structures of a member.
///
/// # Errors
/// [`Unexpandable`]; `into` is unchanged then.
pub fn expand(text: &str, behaviour: Behaviour, into: &mut String) -> Result<(), Unexpandable> {
    let start = into.len();
    let document = if text.starts_with(['{', '[']) { scan::document(text) } else { None };
    let failure = match document {
        None => Failure::Schema,
        Some(node) => match behaviour.write(&node, into) {
            Ok(true) => return Ok(()),
            Ok(false) | Err(Failure::Schema) => Failure::Schema,
            // Debezium infers the schema of the whole document first
            Err(failure) => behaviour.schema(&node).err().unwrap_or(failure),
        },
    };
    into.truncate(start);
    match failure {
        Failure::Schema => {
            write_json_string(text, into);
            Ok(())
        }
        Failure::Value(error) => Err(error),
    }
}

/// The Connect schema of a value.
#[derive(Debug)]
enum Schema<'n> {
    String,
    Boolean,
    Int32,
    Int64,
    Float64,
    /// A null, with [`Behaviour::keep_nulls`].
    Bytes,
    Array {
        element: Box<Schema<'n>>,
        /// The element type of an empty array, with [`Behaviour::keep_empty_arrays`].
        guessed: bool,
    },
    Struct {
        fields: Members<'n, Schema<'n>>,
        /// False for a schema merged from several: Debezium forgets that the element may be null.
        nullable: bool,
    },
}

enum Failure {
    /// There is no schema.
    Schema,
    /// The value does not match its schema.
    Value(Unexpandable),
}

impl Behaviour {
    /// Writes a value by its own schema; returns false and writes nothing if it has none. Most values need no separate
    /// schema.
    fn write(self, node: &Node<'_>, into: &mut String) -> Result<bool, Failure> {
        match node {
            Node::Null if !self.keep_nulls => return Ok(false),
            Node::Array(elements) if elements.is_empty() && !self.keep_empty_arrays => return Ok(false),
            Node::Array(elements) if !elements.is_empty() => {
                let schema = self.element_schema(elements)?;
                write_elements(elements, &schema, into)?;
            }
            Node::Array(_) => into.push_str("[]"),
            Node::Object(members) => {
                into.push('{');
                let mut separator = "";
                for (name, value) in members.iter() {
                    let before = into.len();
                    into.push_str(separator);
                    write_name(name, into);
                    if self.write(value, into)? {
                        // Connect has no field without a name
                        if name.is_empty() {
                            return Err(Failure::Schema);
                        }
                        separator = ",";
                    } else {
                        into.truncate(before);
                    }
                }
                into.push('}');
            }
            _ => write_scalar(node, into)?,
        }
        Ok(true)
    }

    fn schema<'n>(self, node: &'n Node<'_>) -> Result<Option<Schema<'n>>, Failure> {
        Ok(Some(match node {
            Node::Null if !self.keep_nulls => return Ok(None),
            Node::Null => Schema::Bytes,
            Node::Boolean(_) => Schema::Boolean,
            Node::Int(_) => Schema::Int32,
            Node::Long(_) => Schema::Int64,
            Node::BigInteger | Node::Double(_) => Schema::Float64,
            Node::String(_) => Schema::String,
            Node::Array(elements) if elements.is_empty() && !self.keep_empty_arrays => return Ok(None),
            Node::Array(elements) if elements.is_empty() => {
                Schema::Array { element: Box::new(Schema::String), guessed: true }
            }
            Node::Array(elements) => {
                let element = Box::new(self.element_schema(elements)?);
                Schema::Array { element, guessed: false }
            }
            Node::Object(members) => Schema::Struct { fields: self.fields(members)?, nullable: true },
        }))
    }

    /// The schema of an array's elements. Unless they are objects, only the first that is not null is considered.
    fn element_schema<'n>(self, elements: &'n [Node<'_>]) -> Result<Schema<'n>, Failure> {
        let mut present = elements.iter().filter(|element| !matches!(element, Node::Null));
        let sample = present.next().unwrap_or(&Node::Null);
        if present.any(|element| kind(element) != kind(sample)) {
            return Err(Failure::Schema);
        }
        if !matches!(sample, Node::Object(_)) {
            return self.schema(sample)?.ok_or(Failure::Schema);
        }
        let mut objects = elements.iter().filter_map(|element| match element {
            Node::Object(members) => Some(members),
            _ => None,
        });
        let mut fields = objects.next().map_or_else(|| Ok(Members::new()), |first| self.fields(first))?;
        let mut nullable = true;
        for members in objects {
            let further = self.fields(members)?;
            if nullable && further == fields {
                continue;
            }
            nullable = false;
            merge(&mut fields, further);
        }
        Ok(Schema::Struct { fields, nullable })
    }

    fn fields<'n>(self, members: &'n Members<'_, Node<'_>>) -> Result<Members<'n, Schema<'n>>, Failure> {
        let mut fields = Members::new();
        for (name, value) in members.iter() {
            match self.schema(value)? {
                // Connect has no field without a name
                Some(_) if name.is_empty() => return Err(Failure::Schema),
                Some(schema) => fields.insert(Cow::Borrowed(name), schema),
                None => {}
            }
        }
        Ok(fields)
    }
}

impl PartialEq for Schema<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Schema::Array { element, .. }, Schema::Array { element: other, .. }) => element == other,
            (Schema::Struct { fields, nullable }, Schema::Struct { fields: other, nullable: others }) => {
                nullable == others && fields == other
            }
            _ => discriminant(self) == discriminant(other),
        }
    }
}

/// Adds the fields that `fields` lacks. A field that was always null takes the type of a later value. A field that was an empty
/// array takes the type of one with elements; in Debezium this depends on chance.
fn merge<'n>(fields: &mut Members<'n, Schema<'n>>, further: Members<'n, Schema<'n>>) {
    for (position, (name, schema)) in further.into_iter().enumerate() {
        match (fields.get(&name, position), &schema) {
            (None | Some(Schema::Bytes), _)
            | (Some(Schema::Array { guessed: true, .. }), Schema::Array { guessed: false, .. }) => {
                fields.insert(name, schema);
            }
            (Some(_), _) => {}
        }
    }
}

/// The kind of a value, which all elements of an array must share.
fn kind<'n>(node: &Node<'n>) -> Discriminant<Node<'n>> {
    match node {
        // it has the schema of a double
        Node::BigInteger => discriminant(&Node::Double(0.0)),
        _ => discriminant(node),
    }
}

fn write_name(name: &str, into: &mut String) {
    into.push('"');
    into.push_str(name);
    into.push_str("\":");
}

fn write_scalar(node: &Node<'_>, into: &mut String) -> Result<(), Failure> {
    match node {
        Node::Boolean(true) => into.push_str("true"),
        Node::Boolean(false) => into.push_str("false"),
        Node::Int(digits) | Node::Long(digits) => into.push_str(digits),
        // infinite if it is out of the range of a double
        Node::Double(number) => float::write_json(*number, into),
        Node::String(string) => {
            into.push('"');
            string.write(into);
            into.push('"');
        }
        Node::BigInteger => return Err(Failure::Value(Unexpandable::Integer)),
        Node::Null | Node::Array(_) | Node::Object(_) => into.push_str("null"),
    }
    Ok(())
}

/// Writes a value by a schema that may be merged from several values.
fn write_as(node: &Node<'_>, schema: &Schema<'_>, into: &mut String) -> Result<(), Failure> {
    match (node, schema) {
        (Node::Null, Schema::Struct { nullable: false, .. }) => {
            return Err(Failure::Value(Unexpandable::Mixed));
        }
        (Node::Null, _) => into.push_str("null"),
        (Node::Array(elements), Schema::Array { element, .. }) => write_elements(elements, element, into)?,
        (Node::Object(members), Schema::Struct { fields, .. }) => {
            into.push('{');
            for (position, (name, schema)) in fields.iter().enumerate() {
                if position > 0 {
                    into.push(',');
                }
                write_name(name, into);
                write_as(members.get(name, position).unwrap_or(&Node::Null), schema, into)?;
            }
            into.push('}');
        }
        (Node::Boolean(_), Schema::Boolean)
        | (Node::Int(_), Schema::Int32)
        | (Node::Long(_), Schema::Int64)
        | (Node::Double(_), Schema::Float64)
        | (Node::String(_), Schema::String)
        | (Node::BigInteger, _) => write_scalar(node, into)?,
        _ => return Err(Failure::Value(Unexpandable::Mixed)),
    }
    Ok(())
}

fn write_elements(elements: &[Node<'_>], schema: &Schema<'_>, into: &mut String) -> Result<(), Failure> {
    into.push('[');
    for (position, element) in elements.iter().enumerate() {
        if position > 0 {
            into.push(',');
        }
        write_as(element, schema, into)?;
    }
    into.push(']');
    Ok(())
}

//! A YAML node that remembers its line, so that a finding can name it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

/// A node and the line on which it is defined; where an alias or a merge key brought it here, that of
/// the anchor.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    line: u64,
    node: Node,
}

#[derive(Clone, Debug)]
enum Node {
    Scalar(Value),
    List(Vec<Tree>),
    Map(Vec<(String, Tree)>),
}

impl Tree {
    pub(super) const fn line(&self) -> u64 {
        self.line
    }

    /// The value of a key, where this is a mapping that has it.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        match &self.node {
            Node::Map(members) => {
                members.iter().find(|(name, _)| name == key).map(|(_, tree)| tree)
            }
            _ => None,
        }
    }

    /// The text of a scalar that is one.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.node {
            Node::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn items(&self) -> Option<&[Self]> {
        match &self.node {
            Node::List(items) => Some(items),
            _ => None,
        }
    }

    pub(super) const fn is_mapping(&self) -> bool {
        matches!(self.node, Node::Map(_))
    }

    pub(super) const fn is_null(&self) -> bool {
        matches!(self.node, Node::Scalar(Value::Null))
    }

    /// What the Kubernetes types are read from.
    pub(super) fn to_json(&self) -> Value {
        match &self.node {
            Node::Scalar(value) => value.clone(),
            Node::List(items) => items.iter().map(Self::to_json).collect(),
            Node::Map(members) => Value::Object(
                members.iter().map(|(key, tree)| (key.clone(), tree.to_json())).collect(),
            ),
        }
    }

    /// The line of a path such as `spec.containers[0].env`, or of the last part of it that is there.
    pub(super) fn line_of(&self, path: &str) -> u64 {
        let mut here = self;
        for part in path.split(['.', '[']).filter(|part| !part.is_empty()) {
            let next = match (&here.node, part.strip_suffix(']')) {
                (Node::List(items), Some(index)) => {
                    index.parse::<usize>().ok().and_then(|index| items.get(index))
                }
                (_, None) => here.get(part),
                _ => None,
            };
            match next {
                Some(next) => here = next,
                None => break,
            }
        }
        here.line
    }

    /// The first scalar text below this for which `wanted` holds.
    pub(super) fn find(&self, wanted: &dyn Fn(&str) -> bool) -> Option<&Self> {
        match &self.node {
            Node::Scalar(_) => self.text().is_some_and(wanted).then_some(self),
            Node::List(items) => items.iter().find_map(|item| item.find(wanted)),
            Node::Map(members) => members.iter().find_map(|(_, tree)| tree.find(wanted)),
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = serde_saphyr::Spanned::<Node>::deserialize(deserializer)?;
        Ok(Self { line: spanned.defined.line(), node: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNode)
    }
}

struct AnyNode;

impl<'de> Visitor<'de> for AnyNode {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scalar, a list or a mapping")
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E: Error>(self) -> Result<Node, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Scalar(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = access.next_entry()? {
            members.push(member);
        }
        Ok(Node::Map(members))
    }
}

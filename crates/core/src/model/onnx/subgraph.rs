//! Cutting a graph at named values: the nodes between some values and others, as a graph of its own.
//! Knows nothing of what the nodes compute.

use std::collections::{HashMap, HashSet};

use super::{DataType, GraphProto, ModelProto, TensorTypeProto, TypeProto, ValueInfoProto};

/// The value that a graph was to be cut at and does not have.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the graph has no value `{0}`")]
pub struct MissingValue(pub String);

/// The part of `model` that computes `outputs` from `inputs` and from what else of its own inputs it needs. Nodes keep their
/// order, so the same cut is the same bytes. Values inside a graph are `f32`.
///
/// # Errors
/// An output that no node computes.
pub fn cut(model: &ModelProto, inputs: &[String], outputs: &[String]) -> Result<ModelProto, MissingValue> {
    let graph = model.graph.as_ref().ok_or_else(|| MissingValue(outputs.join(", ")))?;
    let given: HashSet<&str> = inputs.iter().map(String::as_str).collect();
    let own: HashMap<&str, &ValueInfoProto> =
        graph.input.iter().map(|info| (info.name.as_str(), info)).collect();
    let needed = Needed::of(graph, &given, outputs)?;
    let taken = inputs.iter().map(String::as_str).chain(graph.input.iter().map(|info| info.name.as_str()));
    let mut seen = HashSet::new();
    let taken = taken.filter(|name| needed.values.contains(name) && seen.insert(*name));
    let info = |name: &str| own.get(name).map_or_else(|| value_info(name), |info| (*info).clone());
    let cut = GraphProto {
        node: needed.nodes.iter().map(|&node| graph.node[node].clone()).collect(),
        name: graph.name.clone(),
        initializer: graph
            .initializer
            .iter()
            .filter(|w| needed.values.contains(w.name.as_str()))
            .cloned()
            .collect(),
        input: taken.map(info).collect(),
        output: outputs.iter().map(|name| value_info(name)).collect(),
    };
    Ok(ModelProto { graph: Some(cut), ..model.clone() })
}

/// What some values are computed with.
struct Needed<'a> {
    /// Indices, ascending.
    nodes: Vec<usize>,
    /// Names of all values that the nodes take.
    values: HashSet<&'a str>,
}

impl<'a> Needed<'a> {
    fn of(graph: &'a GraphProto, given: &HashSet<&str>, outputs: &'a [String]) -> Result<Self, MissingValue> {
        let nodes = graph.node.iter().enumerate();
        let made_by: HashMap<&str, usize> =
            nodes.flat_map(|(i, node)| node.output.iter().map(move |name| (name.as_str(), i))).collect();
        if let Some(missing) = outputs.iter().find(|name| !made_by.contains_key(name.as_str())) {
            return Err(MissingValue(missing.clone()));
        }
        let (mut nodes, mut values) = (HashSet::new(), HashSet::new());
        let mut open: Vec<&str> = outputs.iter().map(String::as_str).collect();
        while let Some(name) = open.pop() {
            let Some(&node) = made_by.get(name).filter(|_| !given.contains(name)) else { continue };
            if nodes.insert(node) {
                let taken = graph.node[node].input.iter().map(String::as_str);
                taken.for_each(|name| {
                    values.insert(name);
                    open.push(name);
                });
            }
        }
        let mut nodes: Vec<usize> = nodes.into_iter().collect();
        nodes.sort_unstable();
        Ok(Self { nodes, values })
    }
}

fn value_info(name: &str) -> ValueInfoProto {
    let tensor_type = TensorTypeProto { elem_type: DataType::Float.into(), shape: None };
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { tensor_type: Some(tensor_type) }) }
}

#[cfg(test)]
mod tests {
    use super::super::{NodeProto, TensorProto};
    use super::*;

    /// `a` and `b` make `c`; `c` and the weight `w` make `d`; `d` and `b` make `e`.
    fn model() -> ModelProto {
        let node = |inputs: [&str; 2], output: &str| NodeProto {
            input: inputs.map(str::to_owned).into(),
            output: vec![output.to_owned()],
            ..NodeProto::default()
        };
        let graph = GraphProto {
            node: vec![node(["a", "b"], "c"), node(["c", "w"], "d"), node(["d", "b"], "e")],
            initializer: vec![TensorProto { name: "w".to_owned(), ..TensorProto::default() }],
            input: ["a", "b"].map(value_info).into(),
            output: vec![value_info("e")],
            ..GraphProto::default()
        };
        ModelProto { graph: Some(graph), ..ModelProto::default() }
    }

    #[test]
    fn a_cut_has_what_lies_between_and_nothing_else() {
        let check = |inputs: &[&str], outputs: &[&str], expect: [&[&str]; 4]| {
            let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            let graph = cut(&model(), &names(inputs), &names(outputs)).unwrap().graph.unwrap();
            let found = [
                graph.input.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(),
                graph.node.iter().map(|node| node.output[0].as_str()).collect(),
                graph.initializer.iter().map(|w| w.name.as_str()).collect(),
                graph.output.iter().map(|info| info.name.as_str()).collect(),
            ];
            assert_eq!(found, expect, "{inputs:?} to {outputs:?}");
        };
        check(&[], &["e"], [&["a", "b"], &["c", "d", "e"], &["w"], &["e"]]);
        check(&[], &["c"], [&["a", "b"], &["c"], &[], &["c"]]);
        check(&["c"], &["d"], [&["c"], &["d"], &["w"], &["d"]]);
        check(&["c"], &["e", "d"], [&["c", "b"], &["d", "e"], &["w"], &["e", "d"]]);
        check(&["d", "c"], &["e"], [&["d", "b"], &["e"], &[], &["e"]]);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let missing = cut(&model(), &[], &["x".to_owned()]).unwrap_err();
        assert_eq!(missing.to_string(), "the graph has no value `x`");
    }
}

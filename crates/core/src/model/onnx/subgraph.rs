//! Extracts a subgraph: the nodes of a graph between given inputs and outputs. Knows nothing of what the
//! nodes compute.

use std::collections::{HashMap, HashSet};

use super::{DataType, GraphProto, ModelProto, TensorTypeProto, TypeProto, ValueInfoProto};

/// The error for an output that no node of the graph computes; holds the name of the value.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the graph computes no value `{0}`")]
pub struct MissingValue(pub String);

/// Returns the part of `model` that computes the values `outputs` from the values `inputs`. Inputs of `model`
/// that this part needs in addition become inputs of the result. All values inside the graph that are named
/// in `inputs` or `outputs` are assumed to be `f32`.
///
/// Nodes keep their order, so equal arguments give equal bytes.
///
/// # Errors
/// Returns [`MissingValue`] with the first of `outputs` that no node computes.
pub fn extract_subgraph(
    model: &ModelProto,
    inputs: &[String],
    outputs: &[String],
) -> Result<ModelProto, MissingValue> {
    let graph = model.graph.as_ref().ok_or_else(|| MissingValue(outputs.join(", ")))?;
    let given: HashSet<&str> = inputs.iter().map(String::as_str).collect();
    let graph_inputs: HashMap<&str, &ValueInfoProto> =
        graph.input.iter().map(|info| (info.name.as_str(), info)).collect();
    let needed = Needed::find(graph, &given, outputs)?;
    let candidates =
        inputs.iter().map(String::as_str).chain(graph.input.iter().map(|info| info.name.as_str()));
    let mut seen = HashSet::new();
    let subgraph_inputs = candidates.filter(|name| needed.values.contains(name) && seen.insert(*name));
    let info = |name: &str| graph_inputs.get(name).map_or_else(|| value_info(name), |info| (*info).clone());
    let subgraph = GraphProto {
        node: needed.nodes.iter().map(|&node| graph.node[node].clone()).collect(),
        name: graph.name.clone(),
        initializer: graph
            .initializer
            .iter()
            .filter(|w| needed.values.contains(w.name.as_str()))
            .cloned()
            .collect(),
        input: subgraph_inputs.map(info).collect(),
        output: outputs.iter().map(|name| value_info(name)).collect(),
    };
    Ok(ModelProto { graph: Some(subgraph), ..model.clone() })
}

/// The nodes that compute the outputs, and the values that these nodes read.
struct Needed<'a> {
    /// Indices of nodes, ascending.
    nodes: Vec<usize>,
    /// Names of the inputs of these nodes.
    values: HashSet<&'a str>,
}

impl<'a> Needed<'a> {
    fn find(
        graph: &'a GraphProto,
        given: &HashSet<&str>,
        outputs: &'a [String],
    ) -> Result<Self, MissingValue> {
        let nodes = graph.node.iter().enumerate();
        let producer_of: HashMap<&str, usize> =
            nodes.flat_map(|(i, node)| node.output.iter().map(move |name| (name.as_str(), i))).collect();
        if let Some(missing) = outputs.iter().find(|name| !producer_of.contains_key(name.as_str())) {
            return Err(MissingValue(missing.clone()));
        }
        let (mut nodes, mut values) = (HashSet::new(), HashSet::new());
        let mut pending: Vec<&str> = outputs.iter().map(String::as_str).collect();
        while let Some(name) = pending.pop() {
            let Some(&node) = producer_of.get(name).filter(|_| !given.contains(name)) else { continue };
            if nodes.insert(node) {
                let node_inputs = graph.node[node].input.iter().map(String::as_str);
                node_inputs.for_each(|name| {
                    values.insert(name);
                    pending.push(name);
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

    /// `c` is computed from `a` and `b`, `d` from `c` and the weight `w`, `e` from `d` and `b`.
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
    fn a_subgraph_has_the_nodes_between_inputs_and_outputs_only() {
        let check = |inputs: &[&str], outputs: &[&str], expect: [&[&str]; 4]| {
            let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            let graph = extract_subgraph(&model(), &names(inputs), &names(outputs)).unwrap().graph.unwrap();
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
    fn a_missing_output_is_named_in_the_error() {
        let missing = extract_subgraph(&model(), &[], &["x".to_owned()]).unwrap_err();
        assert_eq!(missing.to_string(), "the graph computes no value `x`");
    }
}

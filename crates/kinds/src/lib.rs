//! Partial kinds of Kubernetes, with only the fields that the storage controllers and the provisioner use, and the names of
//! the annotations and finalizers that they share.
//!
//! These programs keep the objects of a whole cluster. Each field costs memory per object and code per kind. Writes are
//! patches, so fields that are missing here are not lost.
//!
//! | module | content |
//! |---|---|
//! | [`claim`], [`volume`], [`class`] | PersistentVolumeClaim, PersistentVolume, StorageClass |
//! | [`node`] | Node, CSINode, and the selectors that choose nodes |
//! | [`names`] | annotations and finalizers |
//! | [`meta`] | reads the metadata of any object |
//! | [`lean`] | turns a type into a partial kind |
//!
//! A kind that only one crate uses is defined there, with [`lean_kinds!`].
//!
//! `Serialize` is for caches that keep objects as text. It omits the fields that only the binder of volumes reads.
#![forbid(unsafe_code)]

pub mod claim;
pub mod class;
pub mod lean;
pub mod meta;
pub mod names;
pub mod node;
pub mod volume;

pub use claim::PersistentVolumeClaim;
pub use class::StorageClass;
pub use node::{CSINode, Node};
pub use volume::PersistentVolume;

use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};

lean_kinds! {
    PersistentVolumeClaim: "PersistentVolumeClaim" "persistentvolumeclaims" "" "v1" NamespaceResourceScope;
    PersistentVolume: "PersistentVolume" "persistentvolumes" "" "v1" ClusterResourceScope;
    StorageClass: "StorageClass" "storageclasses" "storage.k8s.io" "v1" ClusterResourceScope;
    Node: "Node" "nodes" "" "v1" ClusterResourceScope;
    CSINode: "CSINode" "csinodes" "storage.k8s.io" "v1" ClusterResourceScope;
}

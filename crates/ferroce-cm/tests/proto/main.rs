//! The protocol, between endpoints in a network with time and faults of its own.

mod flows;
mod params;
mod world;

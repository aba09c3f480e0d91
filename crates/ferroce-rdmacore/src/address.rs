//! Addresses in the library's form.

use ferroce_abi::types::{ibv_ah_attr, ibv_gid, ibv_global_route};
use ferroce_verbs::{AhAttr, Error, Gid, GlobalRoute, Result};

pub(crate) fn to_abi(attr: &AhAttr) -> Result<ibv_ah_attr> {
    let grh = match &attr.grh {
        None => ibv_global_route::default(),
        Some(grh) => ibv_global_route {
            dgid: ibv_gid { raw: grh.dgid.to_bytes() },
            flow_label: grh.flow_label,
            sgid_index: u8::try_from(grh.sgid_index)
                .map_err(|_| Error::invalid("sgid_index", format!("{} is more than 255", grh.sgid_index)))?,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
        },
    };
    Ok(ibv_ah_attr {
        grh,
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: u8::from(attr.grh.is_some()),
        port_num: attr.port_num,
    })
}

pub(crate) fn from_abi(attr: &ibv_ah_attr) -> AhAttr {
    let grh = (attr.is_global != 0).then(|| GlobalRoute {
        dgid: Gid::from_bytes(attr.grh.dgid.raw),
        sgid_index: attr.grh.sgid_index.into(),
        flow_label: attr.grh.flow_label,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
    });
    AhAttr {
        grh,
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        port_num: attr.port_num,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn an_address_comes_back_as_it_was() {
        let route = GlobalRoute {
            flow_label: 0xabcde,
            hop_limit: 3,
            traffic_class: 9,
            ..GlobalRoute::new(Ipv4Addr::new(10, 77, 0, 2).into(), 7)
        };
        let attr = AhAttr { sl: 5, port_num: 2, grh: Some(route), ..AhAttr::roce(Gid::default(), 0) };
        assert_eq!(from_abi(&to_abi(&attr).unwrap()), attr);
        let local = AhAttr { grh: None, dlid: 12, src_path_bits: 1, static_rate: 2, ..attr };
        assert_eq!(from_abi(&to_abi(&local).unwrap()), local);
        assert!(to_abi(&AhAttr::roce(Gid::default(), 256)).is_err());
    }
}

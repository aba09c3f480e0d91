//! The layouts of this crate against those of the installed headers: a C program prints the sizes, offsets and values that a compiler
//! sees. Where there is no C compiler or there are no headers, the test says so and passes.

use ferroce_abi::types::*;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;

/// What is compared: a name, and what it is here and in C.
struct Fact {
    name: String,
    ours: usize,
    c: String,
}

/// Offsets and sizes of structures: `name "C type" { fields }`. A field is called differently in C where the list says so.
macro_rules! layouts {
    (@c $field:ident) => { stringify!($field) };
    (@c $field:ident as $c:literal) => { $c };
    ($($name:ident $c_type:literal { $($field:ident $(as $c:literal)?),* $(,)? },)*) => {{
        let mut facts = Vec::new();
        $(
            facts.push(Fact {
                name: stringify!($name).into(),
                ours: std::mem::size_of::<$name>(),
                c: format!("sizeof({})", $c_type),
            });
            $(
                let field = layouts!(@c $field $(as $c)?);
                facts.push(Fact {
                    name: format!("{}.{field}", stringify!($name)),
                    ours: std::mem::offset_of!($name, $field),
                    c: format!("offsetof({}, {field})", $c_type),
                });
            )*
        )*
        facts
    }};
}

/// Offsets only.
macro_rules! offsets {
    ($name:ident $c_type:literal { $($field:ident),* }) => {
        vec![$(Fact {
            name: format!("{}.{}", stringify!($name), stringify!($field)),
            ours: std::mem::offset_of!($name, $field),
            c: format!("offsetof({}, {})", $c_type, stringify!($field)),
        }),*]
    };
}

fn layouts() -> Vec<Fact> {
    layouts! {
        ibv_gid "union ibv_gid" { raw },
        ibv_gid_entry "struct ibv_gid_entry" { gid, gid_index, port_num, gid_type, ndev_ifindex },
        ibv_global_route "struct ibv_global_route" { dgid, flow_label, sgid_index, hop_limit, traffic_class },
        ibv_ah_attr "struct ibv_ah_attr" { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num },
        ibv_grh "struct ibv_grh" { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid },
        ibv_ah "struct ibv_ah" { context, pd, handle },
        _ibv_device_ops "struct _ibv_device_ops" { _dummy1, _dummy2 },
        ibv_device "struct ibv_device" { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path },
        ibv_device_attr "struct ibv_device_attr" { fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap,
            vendor_id, vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq,
            max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
            max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp,
            max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq,
            max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt },
        ibv_port_attr "struct ibv_port_attr" { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz,
            bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
            init_type_reply, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2 },
        ibv_async_event_element "__typeof__(((struct ibv_async_event *)0)->element)" { cq, qp, srq, wq, port_num },
        ibv_async_event "struct ibv_async_event" { element, event_type },
        ibv_comp_channel "struct ibv_comp_channel" { context, fd, refcnt },
        ibv_pd "struct ibv_pd" { context, handle },
        ibv_mr "struct ibv_mr" { context, pd, addr, length, handle, lkey, rkey },
        ibv_mw "struct ibv_mw" { context, pd, rkey, handle, r#type as "type" },
        ibv_mw_bind_info "struct ibv_mw_bind_info" { mr, addr, length, mw_access_flags },
        ibv_mw_bind "struct ibv_mw_bind" { wr_id, send_flags, bind_info },
        ibv_cq "struct ibv_cq" { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed },
        ibv_srq "struct ibv_srq" { context, srq_context, pd, handle, mutex, cond, events_completed },
        ibv_qp "struct ibv_qp" { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type,
            mutex, cond, events_completed },
        ibv_srq_attr "struct ibv_srq_attr" { max_wr, max_sge, srq_limit },
        ibv_srq_init_attr "struct ibv_srq_init_attr" { srq_context, attr },
        ibv_qp_cap "struct ibv_qp_cap" { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data },
        ibv_qp_init_attr "struct ibv_qp_init_attr" { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all },
        ibv_rx_hash_conf "struct ibv_rx_hash_conf" { rx_hash_function, rx_hash_key_len, rx_hash_key,
            rx_hash_fields_mask },
        ibv_qp_init_attr_ex "struct ibv_qp_init_attr_ex" { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
            comp_mask, pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags },
        ibv_cq_init_attr_ex "struct ibv_cq_init_attr_ex" { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask,
            flags, parent_domain },
        ibv_qp_attr "struct ibv_qp_attr" { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn,
            dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify,
            sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
            alt_port_num, alt_timeout, rate_limit },
        ibv_sge "struct ibv_sge" { addr, length, lkey },
        ibv_recv_wr "struct ibv_recv_wr" { wr_id, next, sg_list, num_sge },
        ibv_wr_rdma "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)" { remote_addr, rkey },
        ibv_wr_atomic "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)" { remote_addr, compare_add, swap, rkey },
        ibv_wr_ud "__typeof__(((struct ibv_send_wr *)0)->wr.ud)" { ah, remote_qpn, remote_qkey },
        ibv_wr_wr "__typeof__(((struct ibv_send_wr *)0)->wr)" { rdma, atomic, ud },
        ibv_wr_bind_mw "__typeof__(((struct ibv_send_wr *)0)->bind_mw)" { mw, rkey, bind_info },
        ibv_wr_tso "__typeof__(((struct ibv_send_wr *)0)->tso)" { hdr, hdr_sz, mss },
        ibv_send_wr "struct ibv_send_wr" { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr,
            xrc_remote_srqn as "qp_type", extra as "bind_mw" },
        ibv_wc "struct ibv_wc" { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags,
            pkey_index, slid, sl, dlid_path_bits },
        ibv_context_ops "struct ibv_context_ops" { _compat_query_device, _compat_query_port, _compat_alloc_pd,
            _compat_dealloc_pd, _compat_reg_mr, _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw,
            _compat_create_cq, poll_cq, req_notify_cq, _compat_cq_event, _compat_resize_cq, _compat_destroy_cq,
            _compat_create_srq, _compat_modify_srq, _compat_query_srq, _compat_destroy_srq, post_srq_recv,
            _compat_create_qp, _compat_query_qp, _compat_modify_qp, _compat_destroy_qp, post_send, post_recv,
            _compat_create_ah, _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast, _compat_async_event },
        ibv_context "struct ibv_context" { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat },
        verbs_context "struct verbs_context" { query_port, advise_mr, alloc_null_mr, read_counters,
            attach_counters_point_flow, create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm,
            modify_flow_action_esp, destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit,
            alloc_parent_domain, dealloc_td, alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table,
            create_rwq_ind_table, destroy_wq, modify_wq, create_wq, query_rt_values, create_cq_ex, r#priv as "priv",
            query_device_ex, ibv_destroy_flow, abi_placeholder2 as "ABI_placeholder2", ibv_create_flow,
            abi_placeholder1 as "ABI_placeholder1", open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd,
            close_xrcd, _abi_placeholder3 as "_ABI_placeholder3", sz, context },
        ibv_data_buf "struct ibv_data_buf" { addr, length },
        ibv_poll_cq_attr "struct ibv_poll_cq_attr" { comp_mask },
        ibv_wc_tm_info "struct ibv_wc_tm_info" { tag, r#priv as "priv" },
        ibv_qp_ex "struct ibv_qp_ex" { qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add,
            wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm,
            wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list,
            wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort, wr_atomic_write },
        ibv_cq_ex "struct ibv_cq_ex" { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed, comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode,
            read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid,
            read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan, read_flow_tag, read_tm_info,
            read_completion_wallclock_ns },
    }
}

/// The structures of the kernel's connection manager.
fn connection_manager() -> Vec<Fact> {
    use ferroce_abi::rdma_cm::wire::*;
    layouts! {
        cmd_hdr "struct rdma_ucm_cmd_hdr" { cmd, len_in as "in", len_out as "out" },
        create_id "struct rdma_ucm_create_id" { uid, response, ps, qp_type },
        create_id_resp "struct rdma_ucm_create_id_resp" { id },
        destroy_id "struct rdma_ucm_destroy_id" { response, id },
        destroy_id_resp "struct rdma_ucm_destroy_id_resp" { events_reported },
        bind "struct rdma_ucm_bind" { id, addr_size, addr },
        resolve_addr "struct rdma_ucm_resolve_addr" { id, timeout_ms, src_size, dst_size, src_addr, dst_addr },
        resolve_route "struct rdma_ucm_resolve_route" { id, timeout_ms },
        query "struct rdma_ucm_query" { response, id, option },
        query_addr_resp "struct rdma_ucm_query_addr_resp" { node_guid, port_num, pkey, src_size, dst_size, src_addr,
            dst_addr },
        conn_param "struct rdma_ucm_conn_param" { qp_num, qkey, private_data, private_data_len, srq,
            responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, valid },
        ah_attr "struct ib_uverbs_ah_attr" { dgid as "grh.dgid", flow_label as "grh.flow_label",
            sgid_index as "grh.sgid_index", hop_limit as "grh.hop_limit", traffic_class as "grh.traffic_class", dlid,
            sl, src_path_bits, static_rate, is_global, port_num },
        ud_param "struct rdma_ucm_ud_param" { qp_num, qkey, ah_attr, private_data, private_data_len },
        listen "struct rdma_ucm_listen" { id, backlog },
        reject "struct rdma_ucm_reject" { id, private_data_len, private_data },
        disconnect "struct rdma_ucm_disconnect" { id },
        init_qp_attr "struct rdma_ucm_init_qp_attr" { response, id, qp_state },
        qp_attr "struct ib_uverbs_qp_attr" { qp_attr_mask, qp_state, cur_qp_state, path_mtu, path_mig_state, qkey,
            rq_psn, sq_psn, dest_qp_num, qp_access_flags, ah_attr, alt_ah_attr, max_send_wr, max_inline_data,
            pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic,
            min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout },
        get_event "struct rdma_ucm_get_event" { response },
        event_resp "struct rdma_ucm_event_resp" { uid, id, event, status, param, ece },
        set_option "struct rdma_ucm_set_option" { optval, id, level, optname, optlen },
        notify "struct rdma_ucm_notify" { id, event },
        join_mcast "struct rdma_ucm_join_mcast" { response, uid, id, addr_size, join_flags, addr },
    }
    .into_iter()
    // Their ends differ: there we have none of the fields that came later.
    .chain(offsets!(connect "struct rdma_ucm_connect" { conn_param, id, reserved }))
    .chain(offsets!(accept "struct rdma_ucm_accept" { uid, conn_param, id, reserved }))
    .collect()
}

fn connection_manager_values() -> Vec<Fact> {
    use ferroce_abi::rdma_cm::wire;
    let fact = |name: &str, ours: u32| Fact { name: name.into(), ours: ours as usize, c: name.into() };
    macro_rules! numbers {
        ($module:ident $prefix:literal $($name:ident)*) => {
            [$(fact(concat!($prefix, stringify!($name)), wire::$module::$name)),*]
        };
    }
    let commands = numbers!(cmd "RDMA_USER_CM_CMD_" CREATE_ID DESTROY_ID RESOLVE_ROUTE CONNECT LISTEN ACCEPT REJECT
        DISCONNECT INIT_QP_ATTR GET_EVENT SET_OPTION NOTIFY LEAVE_MCAST QUERY BIND RESOLVE_ADDR JOIN_MCAST);
    let others = [
        fact("RDMA_USER_CM_QUERY_ADDR", wire::QUERY_ADDR),
        fact("RDMA_OPTION_ID", wire::OPTION_ID),
        fact("RDMA_OPTION_ID_TOS", wire::OPTION_ID_TOS),
        fact("RDMA_OPTION_ID_REUSEADDR", wire::OPTION_ID_REUSEADDR),
        fact("RDMA_OPTION_ID_ACK_TIMEOUT", wire::OPTION_ID_ACK_TIMEOUT),
        fact("RDMA_MC_JOIN_FLAG_FULLMEMBER", wire::JOIN_FULL_MEMBER.into()),
        fact("RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER", wire::JOIN_SEND_ONLY.into()),
        fact("RDMA_MAX_PRIVATE_DATA", wire::MAX_PRIVATE_DATA as u32),
    ];
    commands.into_iter().chain(others).collect()
}

fn values() -> Vec<Fact> {
    let fact = |&(name, value): &(&str, u32)| Fact { name: name.into(), ours: value as usize, c: name.into() };
    value::ALL.iter().map(fact).collect()
}

/// What the compiler says of each fact; `None` if there is no compiler, or it does not find the headers.
fn ask_the_compiler(facts: &[Fact]) -> Option<BTreeMap<String, usize>> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut program = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n#include \
         <rdma/rdma_user_cm.h>\nint main(void) {\n",
    );
    for Fact { name, c, .. } in facts {
        writeln!(program, "printf(\"{name} %zu\\n\", (size_t)({c}));").expect("a string");
    }
    program.push_str("return 0;\n}\n");
    let (source, binary) = (dir.path().join("layout.c"), dir.path().join("layout"));
    let probe = dir.path().join("probe.c");
    std::fs::write(&source, program).expect("the program");
    std::fs::write(&probe, "#include <infiniband/verbs.h>\nint main(void) { return 0; }\n").expect("the probe");
    let compile = |file| Command::new("cc").arg("-o").arg(&binary).arg(file).output();
    if !compile(&probe).is_ok_and(|output| output.status.success()) {
        return None;
    }
    let output = compile(&source).expect("the compiler, which was there before");
    assert!(output.status.success(), "the headers are different:\n{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(&binary).output().expect("the program");
    let text = String::from_utf8(output.stdout).expect("text");
    let parse = |line: &str| {
        let (name, value) = line.split_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    Some(text.lines().map(parse).collect())
}

#[test]
fn layouts_are_those_of_the_headers() {
    let facts: Vec<Fact> =
        [layouts(), values(), connection_manager(), connection_manager_values()].into_iter().flatten().collect();
    let Some(theirs) = ask_the_compiler(&facts) else {
        println!(
            "skipped: there is no C compiler that finds infiniband/verbs.h (Debian: apt install gcc libibverbs-dev)"
        );
        return;
    };
    // A newer header has fields before the first one that we know: all offsets are then greater by as much.
    let grown = theirs["verbs_context.query_port"];
    let mut wrong = Vec::new();
    for Fact { name, ours, .. } in &facts {
        let shift = if name.starts_with("verbs_context") { grown } else { 0 };
        let theirs = theirs[name];
        if theirs != ours + shift {
            wrong.push(format!("{name}: {ours} here, {theirs} in the headers"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{} facts compared", facts.len());
}

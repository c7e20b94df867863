/*
 * RSS on the inner headers of tunnels: VXLAN, GRE with and without an inner Ethernet header, and IP
 * in IP. All flows of a tunnel have the same outer headers, so a hash over those would select one
 * queue.
 */
#define _GNU_SOURCE
#include "nic.h"
#include <infiniband/mlx5dv.h>

enum { QUEUES = 4, TABLE_LOG = 6, TABLE = 1 << TABLE_LOG, DEPTH = 64, FLOWS = 48, MAX_LEN = 256 };

enum tunnel { VXLAN, GRE_ETHERNET, GRE_IP, IP_IN_IP, TUNNELS };

static struct nic nic;
static struct ibv_cq *send_cq, *cq[QUEUES];
static struct ibv_wq *wq[QUEUES];
static struct ibv_qp *sender;

static unsigned mac(uint8_t *to)
{
	memcpy(to, (uint8_t[]){ 2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8 }, 12);
	return 12;
}

/* Writes an IP header for `payload` bytes and returns the header's length. */
static unsigned ip(uint8_t *to, bool six, uint8_t protocol, unsigned payload, uint32_t flow)
{
	if (six) {
		memset(to, 0, 40);
		to[0] = 0x60;
		put16(to + 4, payload);
		to[6] = protocol;
		to[7] = 64;
		to[8] = to[24] = 0xfd;
		put16(to + 22, 1 + flow);
		put16(to + 38, 99 + flow * 3);
		return 40;
	}
	memset(to, 0, 20);
	to[0] = 0x45;
	put16(to + 2, 20 + payload);
	to[8] = 64;
	to[9] = protocol;
	memcpy(to + 12, (uint8_t[]){ 10, 1, (uint8_t)flow, 1, 10, 2, 0, (uint8_t)(7 + flow) }, 8);
	return 20;
}

/* Writes the inner packet, returns its length, and stores the hash of its headers. */
static unsigned inner_packet(uint8_t *to, bool six, bool tcp, uint32_t flow, uint32_t *hash)
{
	unsigned l4_len = tcp ? 20 + 10 : 8 + 10;
	unsigned at = ip(to, six, tcp ? 6 : 17, l4_len, flow);
	uint8_t input[36];
	unsigned addresses = six ? 32 : 8;

	memset(to + at, 0, l4_len);
	put16(to + at, 1000 + flow * 5);
	put16(to + at + 2, 80);
	if (tcp)
		to[at + 12] = 5 << 4;
	else
		put16(to + at + 4, l4_len);
	memcpy(input, to + (six ? 8 : 12), addresses);
	memcpy(input + addresses, to + at, 4);
	*hash = toeplitz(input, addresses + 4);
	return at + l4_len;
}

/* Writes a frame with the flow's packet in a tunnel. The outer header is IPv6 if `outer_six`. */
static unsigned tunnelled(uint8_t *frame, enum tunnel tunnel, bool outer_six, bool six, bool tcp, uint32_t flow,
			  uint32_t *hash)
{
	static const uint8_t protocols[TUNNELS] = { [VXLAN] = 17, [GRE_ETHERNET] = 47, [GRE_IP] = 47 };
	uint8_t packet[MAX_LEN], head[64];
	unsigned packet_len = inner_packet(packet, six, tcp, flow, hash);
	unsigned ethertype = six ? 0x86dd : 0x0800, head_len = 0;

	memset(head, 0, sizeof head);
	if (tunnel == VXLAN) {
		put16(head, 49152);
		put16(head + 2, 4789);
		put16(head + 4, 8 + 8 + 14 + packet_len);
		head[8] = 8;
		head[14] = 42;
		head_len = 16;
	} else if (tunnel != IP_IN_IP) {
		/* With a GRE key, so that the inner packet is at another offset. */
		head[0] = 0x20;
		put16(head + 2, tunnel == GRE_IP ? ethertype : 0x6558);
		head_len = 8;
	}
	if (tunnel == VXLAN || tunnel == GRE_ETHERNET) {
		head_len += mac(head + head_len);
		put16(head + head_len, ethertype);
		head_len += 2;
	}
	uint8_t protocol = tunnel == IP_IN_IP ? (six ? 41 : 4) : protocols[tunnel];
	unsigned at = mac(frame);
	put16(frame + at, outer_six ? 0x86dd : 0x0800);
	at += 2;
	at += ip(frame + at, outer_six, protocol, head_len + packet_len, 0);
	memcpy(frame + at, head, head_len);
	memcpy(frame + at + head_len, packet, packet_len);
	return at + head_len + packet_len;
}

static struct ibv_qp *make_rss(struct ibv_rwq_ind_table *table, uint64_t fields)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
		.pd = nic.pd,
		.rwq_ind_tbl = table,
		.rx_hash_conf = {
			.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
			.rx_hash_key_len = KEY_LEN,
			.rx_hash_key = (uint8_t *)rss_key,
			.rx_hash_fields_mask = fields | IBV_RX_HASH_INNER,
		},
	};
	struct mlx5dv_qp_init_attr dv_attr = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
		.create_flags = MLX5DV_QP_CREATE_TUNNEL_OFFLOADS,
	};
	struct ibv_qp *qp = mlx5dv_create_qp(nic.context, &attr, &dv_attr);

	CHECK(qp);
	return qp;
}

static void check_tunnel(enum tunnel tunnel, bool outer_six, bool six, bool tcp)
{
	bool used[QUEUES] = { 0 };

	for (uint32_t flow = 0; flow < FLOWS; flow++) {
		uint32_t hash;
		unsigned len = tunnelled(nic.memory, tunnel, outer_six, six, tcp, flow, &hash);
		int queue = (int)(hash % TABLE % QUEUES);

		send_frame(&nic, sender, flow, 0, len);
		CHECK(await(send_cq).opcode == IBV_WC_SEND);
		double deadline = seconds() + HANG;
		struct ibv_wc wc;
		int q = 0;
		for (int n = 0; !n;) {
			q = (q + 1) % QUEUES;
			n = ibv_poll_cq(cq[q], 1, &wc);
			CHECK(n >= 0);
			CHECK_SAYING(n || seconds() < deadline, "flow %u of tunnel %d did not arrive", flow, tunnel);
		}
		CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == len);
		CHECK_SAYING(q == queue, "tunnel %d, outer IPv%d, inner IPv%d, flow %u: queue %d, not %d", tunnel,
			     outer_six ? 6 : 4, six ? 6 : 4, flow, q, queue);
		CHECK(!memcmp(received_at(&nic, (unsigned)wc.wr_id), nic.memory, len));
		post_to_wq(&nic, wq[q], (unsigned)wc.wr_id, NIC_BUFFER);
		used[q] = true;
	}
	for (int q = 0; q < QUEUES; q++)
		CHECK(used[q]);
}

int main(void)
{
	static const struct {
		uint64_t fields;
		bool six, tcp;
	} kinds[] = {
		{ IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP, false,
		  false },
		{ IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP, false,
		  true },
		{ IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6 | IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP, true,
		  false },
	};
	struct ibv_wq *entries[TABLE];
	struct mlx5dv_context dv = { .comp_mask = MLX5DV_CONTEXT_MASK_TUNNEL_OFFLOADS };

	nic = nic_open(NULL);
	CHECK(!mlx5dv_query_device(nic.context, &dv));
	CHECK(dv.tunnel_offloads_caps & MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_VXLAN);
	CHECK(dv.tunnel_offloads_caps & MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_GRE);
	send_cq = make_cq(&nic, DEPTH, NULL);
	sender = make_qp(&nic, send_cq, (struct ibv_qp_cap){ .max_send_wr = DEPTH, .max_send_sge = 1 }, 0);
	make_ready(sender, 1);
	for (unsigned q = 0; q < QUEUES; q++) {
		cq[q] = make_cq(&nic, DEPTH, NULL);
		struct ibv_wq_init_attr attr = {
			.wq_type = IBV_WQT_RQ, .max_wr = DEPTH, .max_sge = 1, .pd = nic.pd, .cq = cq[q],
		};
		struct ibv_wq_attr ready = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };
		wq[q] = ibv_create_wq(nic.context, &attr);
		CHECK(wq[q]);
		CHECK(!ibv_modify_wq(wq[q], &ready));
		for (unsigned i = 0; i < DEPTH / 2; i++)
			post_to_wq(&nic, wq[q], q * (DEPTH / 2) + i, NIC_BUFFER);
	}
	for (int i = 0; i < TABLE; i++)
		entries[i] = wq[i % QUEUES];
	struct ibv_rwq_ind_table_init_attr table_attr = { .log_ind_tbl_size = TABLE_LOG, .ind_tbl = entries };
	struct ibv_rwq_ind_table *table = ibv_create_rwq_ind_table(nic.context, &table_attr);
	CHECK(table);
	for (unsigned k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
		struct ibv_qp *qp = make_rss(table, kinds[k].fields);
		struct ibv_flow *flow = take_all(qp, 1);
		for (enum tunnel tunnel = VXLAN; tunnel < TUNNELS; tunnel++)
			for (int outer_six = 0; outer_six < 2; outer_six++)
				check_tunnel(tunnel, outer_six, kinds[k].six, kinds[k].tcp);
		CHECK(!ibv_destroy_flow(flow));
		CHECK(!ibv_destroy_qp(qp));
	}
	CHECK(!ibv_destroy_rwq_ind_table(table));
	for (int q = 0; q < QUEUES; q++) {
		CHECK(!ibv_destroy_wq(wq[q]));
		CHECK(!ibv_destroy_cq(cq[q]));
	}
	CHECK(!ibv_destroy_qp(sender));
	CHECK(!ibv_destroy_cq(send_cq));
	nic_close(&nic);
	puts("ok");
	return 0;
}

/*
 * A RAW_PACKET QP with its own queues on a loopback wire: gathered and inline frames, tags that the
 * NIC inserts and strips, checksums that the NIC computes and verifies, signalled and unsignalled
 * sends, and the completions of a QP in error.
 */
#define _GNU_SOURCE
#include "nic.h"
#include <infiniband/mlx5dv.h>

enum { DEPTH = 64, LEN = 300, INLINE = 200 };

static struct nic nic;
static struct ibv_cq *cq;
static const struct ibv_qp_cap cap = {
	.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 4, .max_recv_sge = 1, .max_inline_data = INLINE,
};

static struct ibv_sge piece(size_t at, uint32_t len)
{
	return (struct ibv_sge){ .addr = (uintptr_t)(nic.memory + at), .length = len, .lkey = nic.mr->lkey };
}

/* Waits for the send completion with `send_id`, unless it is 0, and for the receive completion,
 * which is returned. */
static struct ibv_wc await_frame(uint64_t send_id)
{
	struct ibv_wc received = { 0 };

	for (int left = send_id ? 2 : 1; left > 0; left--) {
		struct ibv_wc wc = await(cq);
		if (wc.opcode == IBV_WC_SEND)
			CHECK(wc.wr_id == send_id);
		else
			received = wc;
	}
	CHECK(received.opcode == IBV_WC_RECV);
	return received;
}

static void expect_frame(struct ibv_wc wc, const uint8_t *frame, uint32_t len)
{
	CHECK_SAYING(wc.byte_len == len, "%u bytes, not %u", wc.byte_len, len);
	CHECK(!memcmp(received_at(&nic, (unsigned)wc.wr_id), frame, len));
}

static void gathered_and_inline(struct ibv_qp *qp)
{
	uint8_t sent[LEN];

	udp_frame(nic.memory, LEN, 1);
	memcpy(sent, nic.memory, LEN);
	/* Pieces are sent in the order of the list, not of their addresses. */
	memcpy(nic.memory + 1000, sent, 50);
	memcpy(nic.memory + 3000, sent + 50, 1);
	memcpy(nic.memory + 2000, sent + 51, LEN - 51);
	struct ibv_sge pieces[3] = { piece(1000, 50), piece(3000, 1), piece(2000, LEN - 51) };
	post_buffer(&nic, qp, 0);
	send_pieces(qp, 11, pieces, 3, IBV_SEND_SIGNALED);
	expect_frame(await_frame(11), sent, LEN);

	/* All lengths, across the sizes of a WQE and the end of the ring. Inline data may be changed after
	* the post. */
	for (uint32_t len = 14; len <= INLINE; len++) {
		udp_frame(nic.memory, INLINE, len);
		memcpy(sent, nic.memory, len);
		struct ibv_sge halves[2] = { piece(0, len / 2), piece(len / 2, len - len / 2) };
		post_buffer(&nic, qp, len);
		send_pieces(qp, len, halves, 2, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
		memset(nic.memory, 0xee, INLINE);
		expect_frame(await_frame(len), sent, len);
	}
}

static void signalled_sends(struct ibv_qp *qp)
{
	struct ibv_wc wc;

	udp_frame(nic.memory, LEN, 2);
	for (unsigned i = 0; i < 4; i++) {
		struct ibv_sge whole = piece(0, LEN);
		post_buffer(&nic, qp, i);
		send_pieces(qp, 20 + i, &whole, 1, i == 3 ? IBV_SEND_SIGNALED : 0);
	}
	int sent = 0;
	for (unsigned frames = 0, i = 0; i < 5; i++) {
		wc = await(cq);
		if (wc.opcode == IBV_WC_SEND) {
			CHECK(wc.wr_id == 23 && wc.qp_num == qp->qp_num);
			sent++;
		} else {
			CHECK(wc.wr_id == frames++);
		}
	}
	CHECK(sent == 1 && ibv_poll_cq(cq, 1, &wc) == 0);
}

/* Returns the RFC 1071 sum over bytes that include the checksum: 0xffff if the checksum is
 * correct. */
static uint32_t sum(const uint8_t *bytes, unsigned len, uint32_t start)
{
	for (unsigned i = 0; i < len; i++)
		start += i % 2 ? bytes[i] : (uint32_t)bytes[i] << 8;
	while (start >> 16)
		start = (start & 0xffff) + (start >> 16);
	return start;
}

static void checksums(struct ibv_qp *qp)
{
	struct ibv_sge whole = piece(0, LEN);

	udp_frame(nic.memory, LEN, 3);
	for (unsigned asked = 0; asked < 2; asked++) {
		post_buffer(&nic, qp, asked);
		send_pieces(qp, 30, &whole, 1, IBV_SEND_SIGNALED | (asked ? IBV_SEND_IP_CSUM : 0));
		struct ibv_wc wc = await_frame(30);
		const uint8_t *frame = received_at(&nic, asked);
		bool header_right = sum(frame + 14, 20, 0) == 0xffff;
		bool datagram_right = sum(frame + 26, LEN - 26, 17 + LEN - 34) == 0xffff;
		CHECK(header_right == (bool)asked && datagram_right == (bool)asked);
		CHECK(!!(wc.wc_flags & IBV_WC_IP_CSUM_OK) == (bool)asked);
	}
}

/* Writes a send WQE that inserts a tag, as DPDK's driver does. Verbs have no call for this. */
static void inserted_tag(void)
{
	struct ibv_qp *qp = make_qp(&nic, cq, cap, 0);
	struct mlx5dv_qp dv = { 0 };
	struct mlx5dv_obj obj = { .qp = { .in = qp, .out = &dv } };
	uint8_t expected[LEN + 4];

	make_ready(qp, 1);
	struct ibv_flow *flow = take_all(qp, 1);
	CHECK(!mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP));
	udp_frame(nic.memory, LEN, 4);
	memcpy(expected, nic.memory, 12);
	memcpy(expected + 12, (uint8_t[]){ 0x81, 0, 0x20, 0x64 }, 4);
	memcpy(expected + 16, nic.memory + 12, LEN - 12);

	/* PRM "Ethernet segment": bit 15 of the inline header size requests a tag; its TCI follows. */
	struct mlx5_wqe_ctrl_seg *control = dv.sq.buf;
	struct mlx5_wqe_eth_seg *ethernet = (void *)(control + 1);
	struct mlx5_wqe_data_seg *data = (void *)((uint8_t *)dv.sq.buf + 32);
	memset(dv.sq.buf, 0, 64);
	mlx5dv_set_ctrl_seg(control, 0, MLX5_OPCODE_SEND, 0, qp->qp_num, MLX5_WQE_CTRL_CQ_UPDATE, 3, 0, 0);
	ethernet->inline_hdr_sz = htobe16(1 << 15);
	memcpy(ethernet->inline_hdr_start, (uint8_t[]){ 0x20, 0x64 }, 2);
	mlx5dv_set_data_seg(data, LEN, nic.mr->lkey, (uintptr_t)nic.memory);
	post_buffer(&nic, qp, 0);
	__atomic_store_n(&dv.dbrec[MLX5_SND_DBR], htobe32(1), __ATOMIC_RELEASE);
	__atomic_store_n((uint64_t *)dv.bf.reg, *(uint64_t *)control, __ATOMIC_RELEASE);
	/* libmlx5 did not post the WQE, so the wr_id of its completion is undefined. */
	for (int left = 2; left > 0; left--) {
		struct ibv_wc wc = await(cq);
		if (wc.opcode == IBV_WC_RECV)
			expect_frame(wc, expected, LEN + 4);
	}
	CHECK(!ibv_destroy_flow(flow));
	CHECK(!ibv_destroy_qp(qp));
}

static void stripped_tag(void)
{
	struct ibv_qp *qp = make_qp(&nic, cq, cap, IBV_QP_CREATE_CVLAN_STRIPPING);
	uint8_t expected[LEN];

	make_ready(qp, 1);
	struct ibv_flow *flow = take_all(qp, 1);
	udp_frame(expected, LEN, 5);
	memcpy(nic.memory, expected, 12);
	memcpy(nic.memory + 12, (uint8_t[]){ 0x81, 0, 0, 7 }, 4);
	memcpy(nic.memory + 16, expected + 12, LEN - 12);
	post_buffer(&nic, qp, 0);
	send_frame(&nic, qp, 50, 0, LEN + 4);
	expect_frame(await_frame(50), expected, LEN);
	CHECK(!ibv_destroy_flow(flow));
	CHECK(!ibv_destroy_qp(qp));
}

static void errors(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_sge bad = piece(0, LEN);
	uint64_t failures = counter_of(&nic, 1, "hw_counters/req_cqe_error");
	uint64_t flushes = counter_of(&nic, 1, "hw_counters/req_cqe_flush_error");

	/* An invalid key: later sends are flushed, and the receive queue continues. */
	bad.lkey ^= 0xff;
	udp_frame(nic.memory, LEN, 6);
	struct ibv_sge good = piece(0, LEN);
	struct ibv_send_wr second = { .wr_id = 61, .sg_list = &good, .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_send_wr first = { .wr_id = 60, .sg_list = &bad, .num_sge = 1, .opcode = IBV_WR_SEND, .next = &second };
	struct ibv_send_wr *refused;
	CHECK(!ibv_post_send(qp, &first, &refused));
	struct ibv_wc wc = await_any(cq);
	CHECK(wc.wr_id == 60 && wc.status == IBV_WC_LOC_PROT_ERR);
	wc = await_any(cq);
	CHECK(wc.wr_id == 61 && wc.status == IBV_WC_WR_FLUSH_ERR);
	await_event(&nic, IBV_EVENT_QP_FATAL);
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	CHECK_SAYING(attr.qp_state == IBV_QPS_SQE, "state %d", attr.qp_state);
	await_counter(&nic, 1, "hw_counters/req_cqe_error", failures + 2);
	await_counter(&nic, 1, "hw_counters/req_cqe_flush_error", flushes + 1);

	/* The whole QP in error: receives are flushed in order. After a reset the QP works again. */
	for (unsigned i = 0; i < 5; i++)
		post_buffer(&nic, qp, 70 + i);
	to_state(qp, IBV_QPS_ERR);
	for (unsigned i = 0; i < 5; i++) {
		wc = await_any(cq);
		CHECK(wc.wr_id == 70 + i && wc.status == IBV_WC_WR_FLUSH_ERR);
	}
	to_state(qp, IBV_QPS_RESET);
	make_ready(qp, 1);
	post_buffer(&nic, qp, 0);
	send_frame(&nic, qp, 80, 0, LEN);
	expect_frame(await_frame(80), nic.memory, LEN);
}

static void queries(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	union ibv_gid group = { .raw = { 0xff, 0x0e } };

	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CAP, &init));
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.cap.max_recv_wr >= DEPTH && attr.cap.max_send_wr >= DEPTH);
	/* The clock of completion time stamps advances with each round of the device's thread. */
	uint64_t before = nic_clock(&nic);
	await_rounds(&nic);
	CHECK(nic_clock(&nic) > before);
	/* Only UD QPs can join multicast groups. */
	CHECK(ibv_attach_mcast(qp, &group, 0) == EINVAL);
	CHECK(ibv_detach_mcast(qp, &group, 0) == EINVAL);
	/* The device reports no offload that it does not have. */
	struct ibv_device_attr_ex device;
	CHECK(!ibv_query_device_ex(nic.context, NULL, &device));
	CHECK(device.tso_caps.max_tso == 0);
}

int main(void)
{
	nic = nic_open(NULL);
	cq = make_cq(&nic, 4 * DEPTH, NULL);
	struct ibv_qp *qp = make_qp(&nic, cq, cap, 0);
	make_ready(qp, 1);
	struct ibv_flow *flow = take_all(qp, 1);
	gathered_and_inline(qp);
	signalled_sends(qp);
	checksums(qp);
	queries(qp);
	errors(qp);
	CHECK(ibv_destroy_qp(qp) == EBUSY);
	CHECK(!ibv_destroy_flow(flow));
	CHECK(!ibv_destroy_qp(qp));
	inserted_tag();
	stripped_tag();
	no_event(&nic);
	CHECK(!ibv_destroy_cq(cq));
	nic_close(&nic);
	puts("ok");
	return 0;
}

/*
 * Completion queues: CQEs of 64 and 128 bytes, a resize with completions in the ring, one event for
 * each arming, moderation, and an overrun.
 *
 *   cq 64|128
 */
#define _GNU_SOURCE
#include "nic.h"
#include <infiniband/mlx5dv.h>

enum { DEPTH = 256, LEN = 100 };

static struct nic nic;
static struct ibv_comp_channel *channel;
static struct ibv_cq *send_cq;
static uint32_t cqe_size;

static struct ibv_cq *sized_cq(uint32_t cqe)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = cqe, .channel = channel };
	struct mlx5dv_cq_init_attr dv_attr = { .comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE, .cqe_size = (uint16_t)cqe_size };
	struct ibv_cq_ex *cq = mlx5dv_create_cq(nic.context, &attr, &dv_attr);

	CHECK(cq);
	return ibv_cq_ex_to_cq(cq);
}

static uint32_t entries(struct ibv_cq *cq)
{
	struct mlx5dv_cq dv = { 0 };
	struct mlx5dv_obj obj = { .cq = { .in = cq, .out = &dv } };

	CHECK(!mlx5dv_init_obj(&obj, MLX5DV_OBJ_CQ));
	CHECK(dv.cqe_size == cqe_size);
	return dv.cqe_cnt;
}

/* Sends `n` frames numbered from `*next` on and waits for their send completions. */
static void send(struct ibv_qp *qp, uint32_t *next, unsigned n)
{
	for (unsigned i = 0; i < n; i++, ++*next) {
		udp_frame(nic.memory, LEN, *next);
		send_frame(&nic, qp, *next, 0, LEN);
		CHECK(await(send_cq).opcode == IBV_WC_SEND);
	}
}

static void take(struct ibv_cq *cq, struct ibv_qp *qp, uint32_t *next, unsigned n)
{
	for (unsigned i = 0; i < n; i++, ++*next) {
		struct ibv_wc wc = await(cq);
		uint32_t number;
		memcpy(&number, received_at(&nic, (unsigned)wc.wr_id) + NUMBER_AT, sizeof number);
		CHECK_SAYING(number == *next && wc.byte_len == LEN, "frame %u, not %u", number, *next);
		post_buffer(&nic, qp, (unsigned)wc.wr_id);
	}
}

/* Waits for one completion event of this CQ. */
static void expect_event(struct ibv_cq *cq)
{
	struct ibv_cq *which;
	void *context;

	CHECK_SAYING(is_readable(channel->fd, HANG * 1000), "no completion event");
	CHECK(!ibv_get_cq_event(channel, &which, &context));
	CHECK(which == cq);
	ibv_ack_cq_events(cq, 1);
}

/* Checks that no completion event is pending. */
static void expect_no_event(void)
{
	await_rounds(&nic);
	CHECK_SAYING(!is_readable(channel->fd, 0), "event without arming");
}

static void resizes(struct ibv_cq *cq, struct ibv_qp *qp, uint32_t *sent, uint32_t *taken)
{
	static const struct {
		int cqe;
		unsigned unread;
	} steps[] = { { 127, 10 }, { 255, 60 }, { 63, 20 }, { 31, 0 }, { 31, 25 }, { 127, 31 } };

	for (unsigned i = 0; i < sizeof steps / sizeof steps[0]; i++) {
		send(qp, sent, steps[i].unread);
		CHECK_SAYING(!ibv_resize_cq(cq, steps[i].cqe), "to %d", steps[i].cqe);
		CHECK(entries(cq) == (uint32_t)steps[i].cqe + 1);
		send(qp, sent, 5);
		take(cq, qp, taken, steps[i].unread + 5);
	}
	/* 16 entries cannot hold the 30 completions; 0 is always refused. */
	send(qp, sent, 30);
	CHECK(ibv_resize_cq(cq, 15) == EINVAL);
	CHECK(ibv_resize_cq(cq, 0) == EINVAL);
	take(cq, qp, taken, 30);
}

static void arming(struct ibv_cq *cq, struct ibv_qp *qp, uint32_t *sent, uint32_t *taken)
{
	send(qp, sent, 1);
	expect_no_event();
	/* A completion from before the arming that was not polled causes an event. */
	CHECK(!ibv_req_notify_cq(cq, 0));
	expect_event(cq);
	take(cq, qp, taken, 1);
	for (int round = 0; round < 20; round++) {
		CHECK(!ibv_req_notify_cq(cq, 0));
		if (round == 0)
			expect_no_event();
		send(qp, sent, 3);
		expect_event(cq);
		if (round == 0)
			expect_no_event();
		take(cq, qp, taken, 3);
	}
	/* Received frames are never solicited. */
	CHECK(!ibv_req_notify_cq(cq, 1));
	send(qp, sent, 2);
	expect_no_event();
	take(cq, qp, taken, 2);
	CHECK(!ibv_req_notify_cq(cq, 0));
	send(qp, sent, 1);
	expect_event(cq);
	take(cq, qp, taken, 1);
}

static void moderation(struct ibv_cq *cq, struct ibv_qp *qp, uint32_t *sent, uint32_t *taken)
{
	struct ibv_modify_cq_attr attr = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 8, 4095 } };

	CHECK(!ibv_modify_cq(cq, &attr));
	/* A single frame: the event comes after the moderation period. */
	CHECK(!ibv_req_notify_cq(cq, 0));
	await_rounds(&nic);
	uint64_t start = nic_clock(&nic);
	send(qp, sent, 1);
	expect_event(cq);
	uint64_t took = nic_clock(&nic) - start;
	CHECK_SAYING(took >= 4095000, "after %lu ns", (unsigned long)took);
	take(cq, qp, taken, 1);
	/* Many frames: one event for all, caused by the count or by the period. */
	CHECK(!ibv_req_notify_cq(cq, 0));
	send(qp, sent, 20);
	expect_event(cq);
	expect_no_event();
	take(cq, qp, taken, 20);
	attr.moderate = (struct ibv_moderate_cq){ 0, 0 };
	CHECK(!ibv_modify_cq(cq, &attr));
	attr.moderate = (struct ibv_moderate_cq){ 8, 4096 };
	CHECK(ibv_modify_cq(cq, &attr) == EINVAL);
}

/* More completions than the ring holds: the CQ and the QP that uses it fail. */
static void overrun(void)
{
	struct ibv_qp_cap cap = { .max_send_wr = DEPTH, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1 };
	struct ibv_cq *cq = sized_cq(15);
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RAW_PACKET, .send_cq = send_cq, .recv_cq = cq, .cap = cap,
	};
	struct ibv_qp *qp = ibv_create_qp(nic.pd, &attr);
	uint32_t sent = 0;

	CHECK(qp);
	make_ready(qp, 1);
	struct ibv_flow *flow = take_all(qp, 1);
	for (unsigned i = 0; i < 64; i++)
		post_buffer(&nic, qp, i);
	send(qp, &sent, 17);
	await_event(&nic, IBV_EVENT_CQ_ERR);
	await_event(&nic, IBV_EVENT_QP_FATAL);
	no_event(&nic);
	CHECK(!ibv_destroy_flow(flow));
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
}

int main(int argc, char **argv)
{
	CHECK_SAYING(argc == 2, "usage: cq 64|128");
	cqe_size = (uint32_t)atoi(argv[1]);
	nic = nic_open(NULL);
	channel = ibv_create_comp_channel(nic.context);
	CHECK(channel);
	send_cq = make_cq(&nic, DEPTH, NULL);
	struct ibv_cq *cq = sized_cq(63);
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RAW_PACKET,
		.send_cq = send_cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(nic.pd, &attr);
	uint32_t sent = 0, taken = 0;

	CHECK(qp && entries(cq) == 64);
	make_ready(qp, 1);
	struct ibv_flow *flow = take_all(qp, 1);
	for (unsigned i = 0; i < DEPTH; i++)
		post_buffer(&nic, qp, i);
	/* Wraps around the ring several times. */
	for (int i = 0; i < 10; i++) {
		send(qp, &sent, 50);
		take(cq, qp, &taken, 50);
	}
	resizes(cq, qp, &sent, &taken);
	arming(cq, qp, &sent, &taken);
	moderation(cq, qp, &sent, &taken);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(!ibv_destroy_flow(flow));
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	overrun();
	CHECK(!ibv_destroy_cq(send_cq));
	CHECK(!ibv_destroy_comp_channel(channel));
	nic_close(&nic);
	puts("ok");
	return 0;
}

/*
 * Events of a WQ in an indirection table of one entry: a frame too long for its buffer, an invalid
 * key, no buffers, an overrun CQ, a flag changed at run time, and delay drop.
 *
 *   wq PATH [stale]      PATH: the driver's debugfs folder delay_drop of this device
 *                        stale: the device leaves an error state that it set itself only if the
 *                        request names that state (refuse_stale_state)
 *
 * Delay drop needs CAP_SYS_RAWIO.
 */
#define _GNU_SOURCE
#include "nic.h"

enum { DEPTH = 16, LEN = 100 };

struct queue {
	struct ibv_cq *cq;
	struct ibv_wq *wq;
	struct ibv_rwq_ind_table *table;
	struct ibv_qp *qp;
	struct ibv_flow *flow;
};

static struct nic nic;
static struct ibv_cq *send_cq;
static struct ibv_qp *sender;

static void set_state(struct ibv_wq *wq, enum ibv_wq_state state)
{
	struct ibv_wq_attr attr = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = state };

	CHECK_SAYING(!ibv_modify_wq(wq, &attr), "to state %d", state);
}

static bool refuses_stale;

/* Moves a WQ to RESET from an error state that the device set and the driver did not record. */
static void reset_after_error(struct ibv_wq *wq)
{
	struct ibv_wq_attr attr = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RESET };

	CHECK(ibv_modify_wq(wq, &attr) == (refuses_stale ? EINVAL : 0));
	if (!refuses_stale)
		return;
	attr.attr_mask |= IBV_WQ_ATTR_CURR_STATE;
	attr.curr_wq_state = IBV_WQS_ERR;
	CHECK(!ibv_modify_wq(wq, &attr));
}

static struct queue make_queue(int cqe, uint32_t flags)
{
	struct queue q = { .cq = make_cq(&nic, cqe, NULL) };
	struct ibv_wq_init_attr attr = {
		.wq_type = IBV_WQT_RQ,
		.max_wr = DEPTH,
		.max_sge = 1,
		.pd = nic.pd,
		.cq = q.cq,
		.comp_mask = flags ? IBV_WQ_INIT_ATTR_FLAGS : 0,
		.create_flags = flags,
	};

	q.wq = ibv_create_wq(nic.context, &attr);
	CHECK(q.wq);
	set_state(q.wq, IBV_WQS_RDY);
	struct ibv_rwq_ind_table_init_attr table = { .ind_tbl = &q.wq };
	q.table = ibv_create_rwq_ind_table(nic.context, &table);
	CHECK(q.table);
	struct ibv_qp_init_attr_ex qp = {
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
		.pd = nic.pd,
		.rwq_ind_tbl = q.table,
		.rx_hash_conf = {
			.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
			.rx_hash_key_len = KEY_LEN,
			.rx_hash_key = (uint8_t *)rss_key,
		},
	};
	q.qp = ibv_create_qp_ex(nic.context, &qp);
	CHECK(q.qp);
	q.flow = take_all(q.qp, 1);
	return q;
}

static void destroy_queue(struct queue *q)
{
	CHECK(!ibv_destroy_flow(q->flow));
	CHECK(!ibv_destroy_qp(q->qp));
	CHECK(!ibv_destroy_rwq_ind_table(q->table));
	CHECK(!ibv_destroy_wq(q->wq));
	CHECK(!ibv_destroy_cq(q->cq));
}

static void send(uint32_t number, uint32_t len)
{
	udp_frame(nic.memory, len, number);
	send_frame(&nic, sender, number, 0, len);
	CHECK(await(send_cq).opcode == IBV_WC_SEND);
}

static void expect(struct queue *q, uint64_t id, uint32_t number, uint32_t len)
{
	struct ibv_wc wc = await(q->cq);
	uint32_t found;

	memcpy(&found, received_at(&nic, (unsigned)wc.wr_id) + NUMBER_AT, sizeof found);
	CHECK_SAYING(wc.wr_id == id && wc.byte_len == len && found == number, "WR %lu: frame %u of %u bytes",
		     (unsigned long)wc.wr_id, found, wc.byte_len);
}

/* A frame longer than its buffer fails the WR and nothing else. */
static void too_long(struct queue *q)
{
	uint64_t errors = counter_of(&nic, 1, "hw_counters/resp_local_length_error");

	post_to_wq(&nic, q->wq, 1, LEN - 1);
	post_to_wq(&nic, q->wq, 2, LEN);
	send(1, LEN);
	send(2, LEN);
	struct ibv_wc wc = await_any(q->cq);
	CHECK_SAYING(wc.wr_id == 1 && wc.status == IBV_WC_LOC_LEN_ERR, "%s", ibv_wc_status_str(wc.status));
	expect(q, 2, 2, LEN);
	await_counter(&nic, 1, "hw_counters/resp_local_length_error", errors + 1);
	no_event(&nic);
}

/* An invalid key fails the WQ: later WRs are flushed. After a reset the WQ works again. */
static void bad_key(struct queue *q)
{
	uint64_t errors = counter_of(&nic, 1, "hw_counters/resp_cqe_error");
	uint64_t flushes = counter_of(&nic, 1, "hw_counters/resp_cqe_flush_error");
	struct ibv_sge sge = { .addr = (uintptr_t)received_at(&nic, 3), .length = LEN, .lkey = nic.mr->lkey ^ 0xff };
	struct ibv_recv_wr wr = { .wr_id = 3, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!ibv_post_wq_recv(q->wq, &wr, &bad));
	post_to_wq(&nic, q->wq, 4, LEN);
	send(3, LEN);
	struct ibv_wc wc = await_any(q->cq);
	CHECK_SAYING(wc.wr_id == 3 && wc.status == IBV_WC_LOC_PROT_ERR, "%s", ibv_wc_status_str(wc.status));
	wc = await_any(q->cq);
	CHECK_SAYING(wc.wr_id == 4 && wc.status == IBV_WC_WR_FLUSH_ERR, "%s", ibv_wc_status_str(wc.status));
	await_event(&nic, IBV_EVENT_WQ_FATAL);
	await_counter(&nic, 1, "hw_counters/resp_cqe_error", errors + 2);
	await_counter(&nic, 1, "hw_counters/resp_cqe_flush_error", flushes + 1);
	reset_after_error(q->wq);
	set_state(q->wq, IBV_WQS_RDY);
	post_to_wq(&nic, q->wq, 5, LEN);
	send(5, LEN);
	expect(q, 5, 5, LEN);
	no_event(&nic);
}

static void no_buffers(struct queue *q)
{
	uint64_t lost = counter_of(&nic, 1, "hw_counters/out_of_buffer");
	struct ibv_wc wc;

	for (uint32_t i = 0; i < 7; i++)
		send(i, LEN);
	await_counter(&nic, 1, "hw_counters/out_of_buffer", lost + 7);
	CHECK(ibv_poll_cq(q->cq, 1, &wc) == 0);
	post_to_wq(&nic, q->wq, 6, LEN);
	send(6, LEN);
	expect(q, 6, 6, LEN);
}

/* The tag is stripped while the flag is set. */
static void flag_at_run_time(struct queue *q)
{
	struct ibv_wq_attr attr = {
		.attr_mask = IBV_WQ_ATTR_FLAGS, .flags_mask = IBV_WQ_FLAGS_CVLAN_STRIPPING,
	};

	for (unsigned round = 0; round < 4; round++) {
		bool strips = round % 2 == 1;
		attr.flags = strips ? IBV_WQ_FLAGS_CVLAN_STRIPPING : 0;
		CHECK(!ibv_modify_wq(q->wq, &attr));
		post_to_wq(&nic, q->wq, round, LEN);
		udp_frame(nic.memory, LEN, round);
		memmove(nic.memory + 16, nic.memory + 12, LEN - 16);
		memcpy(nic.memory + 12, (uint8_t[]){ 0x81, 0, 0, 9 }, 4);
		send_frame(&nic, sender, round, 0, LEN);
		CHECK(await(send_cq).opcode == IBV_WC_SEND);
		struct ibv_wc wc = await(q->cq);
		const uint8_t *frame = received_at(&nic, round);
		CHECK(wc.byte_len == (strips ? LEN - 4 : LEN));
		CHECK(frame[12] == (strips ? 0x08 : 0x81));
		CHECK(!memcmp(frame + (strips ? 12 : 16), nic.memory + 16, LEN - 16));
	}
}

/* More frames than the CQ holds: the CQ and the WQ fail. */
static void overrun(void)
{
	struct queue q = make_queue(3, 0);

	for (unsigned i = 0; i < DEPTH; i++)
		post_to_wq(&nic, q.wq, i, LEN);
	for (uint32_t i = 0; i < 5; i++)
		send(i, LEN);
	await_event(&nic, IBV_EVENT_CQ_ERR);
	await_event(&nic, IBV_EVENT_WQ_FATAL);
	no_event(&nic);
	destroy_queue(&q);
}

static const char *folder;

static uint64_t delay_drop_file(const char *name)
{
	char path[512];

	snprintf(path, sizeof path, "%s/%s", folder, name);
	return number_in(path);
}

/* Creates WQs until the device refuses one. The refused WQ is not counted. */
static void count_of_queues(void)
{
	enum { MANY = 64 };
	struct ibv_cq *cq = make_cq(&nic, DEPTH, NULL);
	struct ibv_wq_init_attr attr = {
		.wq_type = IBV_WQT_RQ,
		.max_wr = DEPTH,
		.max_sge = 1,
		.pd = nic.pd,
		.cq = cq,
		.comp_mask = IBV_WQ_INIT_ATTR_FLAGS,
		.create_flags = IBV_WQ_FLAGS_DELAY_DROP,
	};
	struct ibv_wq *wqs[MANY];
	uint64_t queues = delay_drop_file("num_rqs");
	unsigned made = 0;

	while (made < MANY && (wqs[made] = ibv_create_wq(nic.context, &attr)))
		made++;
	CHECK_SAYING(made > 0 && made < MANY, "%u WQs", made);
	CHECK(delay_drop_file("num_rqs") == queues + made);
	while (made > 0)
		CHECK(!ibv_destroy_wq(wqs[--made]));
	CHECK(!ibv_destroy_cq(cq));
}

static void delay_drop(void)
{
	uint64_t queues = delay_drop_file("num_rqs");
	struct queue q = make_queue(4 * DEPTH, IBV_WQ_FLAGS_DELAY_DROP);
	struct ibv_wc wc;
	const char *out_of_buffer = "hw_counters/out_of_buffer";
	bool held = false;

	CHECK(delay_drop_file("num_rqs") == queues + 1);
	CHECK(delay_drop_file("timeout") == 50000);
	/*
	 * A buffer posted in time: the held frame is received. On a busy machine the buffer may be late,
	 * which the NIC reports by a timeout event. The loop therefore repeats until a round without an
	 * event.
	 */
	double deadline = seconds() + HANG;
	for (uint32_t round = 0; !held; round++) {
		CHECK_SAYING(seconds() < deadline, "no frame was held in %u rounds", round);
		uint64_t lost = counter_of(&nic, 1, out_of_buffer), events = delay_drop_file("num_timeout_events");
		send(round, LEN);
		send(100000 + round, LEN);
		await_rounds(&nic);
		CHECK(ibv_poll_cq(q.cq, 1, &wc) == 0);
		post_to_wq(&nic, q.wq, 1, LEN);
		post_to_wq(&nic, q.wq, 2, LEN);
		/* Two more frames, so that both buffers are used even if the first two frames were lost. */
		send(200000 + round, LEN);
		send(300000 + round, LEN);
		await(q.cq);
		/* By now the NIC has reported any loss before this frame. */
		await_rounds(&nic);
		held = delay_drop_file("num_timeout_events") == events;
		await(q.cq);
		uint32_t first;
		memcpy(&first, received_at(&nic, 1) + NUMBER_AT, sizeof first);
		CHECK_SAYING(!held || first == round, "frame %u, not %u", first, round);
		/* The remaining frames find no buffer and time out. */
		await_counter(&nic, 1, out_of_buffer, lost + 2);
	}

	/* Timeouts: each held frame is lost after one timeout, because the driver arms delay drop
	 * again. */
	for (unsigned i = 0; i < 3; i++) {
		uint64_t events = delay_drop_file("num_timeout_events"), lost = counter_of(&nic, 1, out_of_buffer);
		uint64_t start = nic_clock(&nic);
		send(i, LEN);
		await_counter(&nic, 1, out_of_buffer, lost + 1);
		uint64_t took = nic_clock(&nic) - start;
		CHECK_SAYING(took >= 50000000, "after %lu ns", (unsigned long)took);
		CHECK(delay_drop_file("num_timeout_events") == events + 1);
	}
	post_to_wq(&nic, q.wq, 7, LEN);
	send(7, LEN);
	expect(&q, 7, 7, LEN);
	/* A timeout is not an asynchronous event for the program. */
	no_event(&nic);
	destroy_queue(&q);
}

int main(int argc, char **argv)
{
	CHECK_SAYING(argc == 2 || (argc == 3 && !strcmp(argv[2], "stale")), "usage: wq PATH [stale]");
	folder = argv[1];
	refuses_stale = argc == 3;
	nic = nic_open(NULL);
	send_cq = make_cq(&nic, DEPTH, NULL);
	sender = make_qp(&nic, send_cq, (struct ibv_qp_cap){ .max_send_wr = DEPTH, .max_send_sge = 1 }, 0);
	make_ready(sender, 1);
	struct queue q = make_queue(4 * DEPTH, 0);
	too_long(&q);
	bad_key(&q);
	no_buffers(&q);
	flag_at_run_time(&q);
	destroy_queue(&q);
	overrun();
	delay_drop();
	count_of_queues();
	CHECK(!ibv_destroy_qp(sender));
	CHECK(!ibv_destroy_cq(send_cq));
	nic_close(&nic);
	puts("ok");
	return 0;
}

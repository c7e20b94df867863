/*
 * Measures the receive rate: an ibv_poll_cq loop that reads one byte of each frame and reposts its
 * buffer.
 *
 *   rate QUEUES COUNT [CPU]
 *
 * The queues share a fixed number of buffers and one CQ for any number of queues, so that the use
 * of caches and page tables does not affect the comparison. Prints nanoseconds per frame.
 */
#define _GNU_SOURCE
#include "check.h"
#include <infiniband/verbs.h>
#include <sched.h>
#include <sys/mman.h>

enum { BUFFERS = 4096, BUFFER = 2048, BATCH = 64, MAX_QUEUES = 64, TABLE_LOG = 7, TABLE = 1 << TABLE_LOG };

static struct ibv_wq *wq[MAX_QUEUES];
static struct ibv_mr *mr;
static uint8_t *memory;

/* Posts a list of buffers to a queue. */
static void post(int queue, struct ibv_recv_wr *list)
{
	struct ibv_recv_wr *bad;

	CHECK(!ibv_post_wq_recv(wq[queue], list, &bad));
}

static void prepare(struct ibv_recv_wr *wr, struct ibv_sge *sge, uint64_t id)
{
	*sge = (struct ibv_sge){
		.addr = (uintptr_t)(memory + (uint32_t)id * (size_t)BUFFER), .length = BUFFER, .lkey = mr->lkey,
	};
	*wr = (struct ibv_recv_wr){ .wr_id = id, .sg_list = sge, .num_sge = 1 };
}

static uint64_t receive(struct ibv_cq *cq)
{
	static struct ibv_wc wc[BATCH];
	static struct ibv_recv_wr wr[BATCH], *first[MAX_QUEUES], *last[MAX_QUEUES];
	static struct ibv_sge sge[BATCH];
	int used[BATCH], uses = 0;
	int n = ibv_poll_cq(cq, BATCH, wc);

	CHECK(n >= 0);
	for (int i = 0; i < n; i++) {
		CHECK(wc[i].status == IBV_WC_SUCCESS);
		int queue = (int)(wc[i].wr_id >> 32);
		prepare(&wr[i], &sge[i], wc[i].wr_id);
		(void)*(volatile uint8_t *)(uintptr_t)(sge[i].addr + 30);
		if (first[queue])
			last[queue]->next = &wr[i];
		else
			first[used[uses++] = queue] = &wr[i];
		last[queue] = &wr[i];
	}
	while (uses > 0) {
		int queue = used[--uses];
		post(queue, first[queue]);
		first[queue] = NULL;
	}
	return (uint64_t)n;
}

static struct ibv_qp *spread(struct ibv_context *context, struct ibv_pd *pd, int queues, struct ibv_rwq_ind_table **table)
{
	struct ibv_wq *entries[TABLE];
	struct ibv_rwq_ind_table_init_attr table_attr = { .log_ind_tbl_size = TABLE_LOG, .ind_tbl = entries };

	for (int i = 0; i < TABLE; i++)
		entries[i] = wq[i % queues];
	*table = ibv_create_rwq_ind_table(context, &table_attr);
	CHECK(*table);
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
		.pd = pd,
		.rwq_ind_tbl = *table,
		.rx_hash_conf = {
			.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
			.rx_hash_key_len = KEY_LEN,
			.rx_hash_key = (uint8_t *)rss_key,
			.rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_PORT_UDP |
					       IBV_RX_HASH_DST_PORT_UDP,
		},
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	CHECK(qp);
	return qp;
}

int main(int argc, char **argv)
{
	CHECK_SAYING(argc == 3 || argc == 4, "usage: rate QUEUES COUNT [CPU]");
	int queues = atoi(argv[1]);
	uint64_t count = strtoull(argv[2], NULL, 0), received = 0;
	CHECK(queues >= 1 && queues <= MAX_QUEUES && count > 0);

	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	if (argc == 4) {
		cpu_set_t cpus;
		CPU_ZERO(&cpus);
		CPU_SET(atoi(argv[3]), &cpus);
		CHECK(!sched_setaffinity(0, sizeof cpus, &cpus));
	}
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd);
	memory = mmap(NULL, (size_t)BUFFERS * BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	CHECK(memory != MAP_FAILED);
	mr = ibv_reg_mr(pd, memory, (size_t)BUFFERS * BUFFER, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_cq *cq = ibv_create_cq(context, BUFFERS, NULL, NULL, 0);
	CHECK(cq);
	int share = BUFFERS / queues;
	for (int q = 0; q < queues; q++) {
		struct ibv_wq_init_attr attr = {
			.wq_type = IBV_WQT_RQ, .max_wr = (uint32_t)share, .max_sge = 1, .pd = pd, .cq = cq,
		};
		struct ibv_wq_attr ready = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };
		wq[q] = ibv_create_wq(context, &attr);
		CHECK(wq[q]);
		CHECK(!ibv_modify_wq(wq[q], &ready));
		for (int i = 0; i < share; i++) {
			struct ibv_recv_wr wr;
			struct ibv_sge sge;
			prepare(&wr, &sge, (uint64_t)q << 32 | (uint32_t)(q * share + i));
			post(q, &wr);
		}
	}
	struct ibv_rwq_ind_table *table;
	struct ibv_qp *qp = spread(context, pd, queues, &table);
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
	} rule = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof rule, .num_of_specs = 1, .port = 1 },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof rule.eth },
	};
	struct ibv_flow *flow = ibv_create_flow(qp, &rule.attr);
	CHECK(flow);
	/* Excludes the start from the measurement. */
	while (received < BUFFERS)
		received += receive(cq);
	double start = seconds();
	for (received = 0; received < count;)
		received += receive(cq);
	printf("%.2f\n", (seconds() - start) * 1e9 / (double)received);
	CHECK(!ibv_destroy_flow(flow));
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_rwq_ind_table(table));
	for (int q = 0; q < queues; q++)
		CHECK(!ibv_destroy_wq(wq[q]));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	munmap(memory, (size_t)BUFFERS * BUFFER);
	return 0;
}

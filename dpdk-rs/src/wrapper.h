#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_log.h>
#include <rte_dev.h>

/* DPDK's inline functions, as functions. */
int isthmus_errno(void);
uint16_t isthmus_receive(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n, uint16_t *broken);
uint16_t isthmus_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n);
struct rte_mbuf *isthmus_alloc(struct rte_mempool *pool);
void isthmus_free(struct rte_mbuf *m);
struct rte_mbuf *isthmus_copy(const struct rte_mbuf *m, struct rte_mempool *pool);

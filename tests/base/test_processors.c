/* test_processors.c - which processors a process may use: quotas of control groups, cores, affinity. Groups and the
 * machine's topology are laid out in a directory of the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/processors.h"

static char root[32], member[64];

static int make_root(void **state) {
    (void)state;
    strcpy(root, "/tmp/td-test-cpus-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    snprintf(member, sizeof member, "%s/membership", root);
    return 0;
}

static int remove_root(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

/* Writes root/name, and makes the directories above it. */
static void put(const char *name, const char *text) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(path, 0700);
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    fclose(f);
}

static int quota(void) {
    return td_processors_quota(member, root);
}

static void the_tightest_quota_of_the_ancestors_counts(void **state) {
    (void)state;
    put("membership", "12:memory:/other\n0::/a/b\n");
    assert_int_equal(quota(), 0); /* no files: no quota */
    put("a/b/cpu.max", "max 100000\n");
    assert_int_equal(quota(), 0);
    put("a/b/cpu.max", "350000 100000\n");
    assert_int_equal(quota(), 4);
    put("a/cpu.max", "150000 100000\n");
    assert_int_equal(quota(), 2);
    put("cpu.max", "1000 100000\n");
    assert_int_equal(quota(), 1);
    put("membership", "0::/\n");
    assert_int_equal(quota(), 1);
    put("cpu.max", "nonsense");
    assert_int_equal(quota(), 0);
    put("membership", "12:pids:/elsewhere\n");
    assert_int_equal(quota(), 0);
    assert_int_equal(td_processors_quota("/nonexistent", root), 0);
}

static void put_v1(const char *group, const char *quota_us, const char *period_us) {
    char name[200];
    snprintf(name, sizeof name, "cpu%s/cpu.cfs_quota_us", group);
    put(name, quota_us);
    snprintf(name, sizeof name, "cpu%s/cpu.cfs_period_us", group);
    put(name, period_us);
}

static void quotas_of_version_1_count(void **state) {
    (void)state;
    put("membership", "9:cpuset:/set\n4:cpuacct,cpu:/docker/x\n0::/\n");
    assert_int_equal(quota(), 0);
    put_v1("", "-1\n", "100000\n");
    assert_int_equal(quota(), 0);
    put_v1("", "250000\n", "100000\n"); /* a container sees its group as the root: /docker/x is not there */
    assert_int_equal(quota(), 3);
    put_v1("/docker/x", "-1\n", "100000\n");
    assert_int_equal(quota(), 3);
    put_v1("/docker/x", "100000\n", "50000\n");
    assert_int_equal(quota(), 2);
    put_v1("/docker", "40000\n", "50000\n");
    assert_int_equal(quota(), 1);
    put_v1("/docker", "40000\n", "nonsense\n");
    assert_int_equal(quota(), 2);
    put("cpu.max", "100000 100000\n"); /* both versions: the less */
    assert_int_equal(quota(), 1);
    put("cpu.max", "900000 100000\n");
    assert_int_equal(quota(), 2);
    put("membership", "9:cpuset:/docker/x\n"); /* another controller's hierarchy */
    assert_int_equal(quota(), 0);
    put("membership", "nonsense\n:::\n4:cpu\n4:cpu:relative\n");
    assert_int_equal(quota(), 0);
}

static void put_core(int cpu, const char *file, const char *list) {
    char name[100];
    snprintf(name, sizeof name, "cpu%d/topology/%s", cpu, file);
    put(name, list);
}

static void assert_order(const int *got, const int *want, int n) {
    for (int i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("place %d: processor %d, expected %d", i, got[i], want[i]);
}

static void a_processor_of_each_core_comes_first(void **state) {
    (void)state;
    int beside[] = {0, 1, 2, 3, 4, 5}, apart[] = {10, 11, 12, 13}, some[] = {1, 2, 3, 5};
    put_core(0, "core_cpus_list", "0-1\n");
    put_core(1, "core_cpus_list", "0-1\n");
    put_core(2, "core_cpus_list", "2-3\n");
    put_core(3, "core_cpus_list", "2-3\n");
    put_core(4, "thread_siblings_list", "4,5\n"); /* older kernels */
    put_core(5, "thread_siblings_list", "4,5\n");
    td_processors_by_core(beside, 6, root);
    assert_order(beside, (const int[]){0, 2, 4, 1, 3, 5}, 6);
    td_processors_by_core(some, 4, root); /* a mask that splits cores */
    assert_order(some, (const int[]){1, 2, 5, 3}, 4);
    put_core(10, "core_cpus_list", "10,12\n");
    put_core(12, "core_cpus_list", "10,12\n");
    put_core(11, "core_cpus_list", "11,13\n");
    put_core(13, "core_cpus_list", "11,13\n");
    td_processors_by_core(apart, 4, root);
    assert_order(apart, (const int[]){10, 11, 12, 13}, 4);
}

static void what_sysfs_does_not_tell_is_a_core_of_its_own(void **state) {
    (void)state;
    int cpu[] = {20, 21, 22, 23};
    put_core(21, "core_cpus_list", "nonsense\n");
    put_core(23, "core_cpus_list", "20,23\n");
    td_processors_by_core(cpu, 4, root);
    assert_order(cpu, (const int[]){20, 21, 22, 23}, 4);
    td_processors_by_core(cpu, 4, "/nonexistent");
    assert_order(cpu, (const int[]){20, 21, 22, 23}, 4);
    td_processors_by_core(cpu, 0, root);
    td_alloc_fail_at(0);
    td_processors_by_core(cpu, 4, root);
    td_alloc_fail_at(-1);
    assert_order(cpu, (const int[]){20, 21, 22, 23}, 4);
}

static void there_is_at_least_one_processor(void **state) {
    (void)state;
    assert_in_range(td_processors_usable(), 1, 1 << 20);
#ifdef __linux__
    int n;
    int *list = td_processors_list(&n);
    assert_non_null(list);
    assert_true(n >= td_processors_usable());
    for (int i = 1; i < n; i++)
        assert_true(list[i] > list[i - 1]);
    td_free(list);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_tightest_quota_of_the_ancestors_counts, make_root, remove_root),
        cmocka_unit_test_setup_teardown(quotas_of_version_1_count, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_processor_of_each_core_comes_first, make_root, remove_root),
        cmocka_unit_test_setup_teardown(what_sysfs_does_not_tell_is_a_core_of_its_own, make_root, remove_root),
        cmocka_unit_test(there_is_at_least_one_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

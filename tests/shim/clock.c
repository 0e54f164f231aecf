// Makes the clocks of one process jump. When preloaded, this library adds the values in the file named by CLOCK_SHIM
// to the wall clock and to the clock that includes suspend. The file can change at any time.
//
// tenure reads its clocks from the kernel's vDSO, so this library replaces the function of the vDSO. The C library's
// clock_gettime, which gives the times of event lines, still returns the true time, because the checker compares the
// event lines of all processes.
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef __x86_64__
#error "the jump that replaces the vDSO's function is written for x86-64"
#endif

// Nanoseconds to add: to CLOCK_REALTIME, to CLOCK_BOOTTIME.
static volatile int64_t *added;

// Returns the negated error, as the vDSO does, and does not change errno.
static long kernel_clock(clockid_t clock, struct timespec *time) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_clock_gettime), "D"(clock), "S"(time)
                     : "rcx", "r11", "memory");
    return result;
}

static long shifted_clock(clockid_t clock, struct timespec *time) {
    long result = kernel_clock(clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_BOOTTIME)) {
        int64_t total = time->tv_sec * 1000000000LL + time->tv_nsec + added[clock == CLOCK_BOOTTIME];
        time->tv_sec = total / 1000000000LL;
        time->tv_nsec = total % 1000000000LL;
    }
    return result;
}

int clock_gettime(clockid_t clock, struct timespec *time) { return (int)syscall(SYS_clock_gettime, clock, time); }

static void replace(unsigned char *function) {
    uintptr_t page = (uintptr_t)function & ~(uintptr_t)4095;
    unsigned char jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0}; // movabs rax, address; jmp rax
    long (*target)(clockid_t, struct timespec *) = shifted_clock;
    memcpy(jump + 2, &target, sizeof target);
    if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0 &&
        mprotect((void *)page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        abort();
    memcpy(function, jump, sizeof jump);
}

__attribute__((constructor)) static void install(void) {
    const char *name = getenv("CLOCK_SHIM");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    void *shared = file < 0 ? MAP_FAILED : mmap(NULL, 16, PROT_READ, MAP_SHARED, file, 0);
    unsigned char *base = (unsigned char *)getauxval(AT_SYSINFO_EHDR);
    if (shared == MAP_FAILED || base == NULL)
        abort();
    added = shared;

    const Elf64_Ehdr *header = (const Elf64_Ehdr *)base;
    const Elf64_Phdr *segments = (const Elf64_Phdr *)(base + header->e_phoff);
    const Elf64_Dyn *dynamic = NULL;
    for (int i = 0; i < header->e_phnum; i++)
        if (segments[i].p_type == PT_DYNAMIC)
            dynamic = (const Elf64_Dyn *)(base + segments[i].p_offset);
    const Elf64_Sym *symbols = NULL;
    const char *names = NULL;
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_SYMTAB)
            symbols = (const Elf64_Sym *)(base + dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_STRTAB)
            names = (const char *)(base + dynamic->d_un.d_ptr);
    }
    // In the vDSO, the string table follows the symbol table, so it marks the end of the symbols.
    int found = 0;
    for (; symbols && names && (const char *)symbols < names; symbols++)
        if (strcmp(names + symbols->st_name, "__vdso_clock_gettime") == 0) {
            replace(base + symbols->st_value);
            found = 1;
        }
    if (!found)
        abort();
}

#pragma once

#include <array>

#include "pagetide/allocator/clear/cpu_features.h"

// What CPUID says on CPUs that are not at hand, as published by those who read it there. Each has
// its source: a repository of GitHub, as owner/name, and the file in it. The values are those of
// the file, in the order EAX, EBX, ECX, EDX; an empty leaf is not in the file or is 0 there.
//
// XCR0 is not in the files. It is set to the register states that the CPU supports, leaf 0dh EAX,
// where the operating system has set OSXSAVE: a system that enables them all.

namespace pagetide {

struct RecordedCpu {
  const char* name;  // fit for the name of a test
  CpuidLeaves leaves;
};

// EPYC 7551P, Zen 1. InstLatx64/InstLatx64,
// AuthenticAMD/AuthenticAMD0800F12_K17_Zen_CPUID.txt, CPU #0. Leaf 7 has no subleaf 1.
inline constexpr RecordedCpu kNaples = {
    .name = "zen1_naples",
    .leaves =
        {
            .leaf_0 = {0x0000000d, 0x68747541, 0x444d4163, 0x69746e65},
            .leaf_1 = {0x00800f12, 0x00400800, 0x7ed8320b, 0x178bfbff},
            .leaf_7_0 = {0x00000000, 0x209c01a9, 0x00000000, 0x00000000},
            .leaf_7_1 = {},
            .leaf_80000000 = {0x8000001f, 0x68747541, 0x444d4163, 0x69746e65},
            .leaf_80000001 = {0x00800f12, 0x40000000, 0x35c233ff, 0x2fd3fbff},
            .leaf_80000005 = {0xff40ff40, 0xff40ff40, 0x20080140, 0x40040140},
            .leaf_80000006 = {0x36006400, 0x56006400, 0x02006140, 0x0200c140},
            .leaf_80000008 = {0x00003030, 0x00000007, 0x0000603f, 0x00000000},
            .leaf_4 = {},
            .leaf_8000001d = {{
                {0x00004121, 0x01c0003f, 0x0000003f, 0x00000000},
                {0x00004122, 0x00c0003f, 0x000000ff, 0x00000000},
                {0x00004143, 0x01c0003f, 0x000003ff, 0x00000002},
                {0x0001c163, 0x03c0003f, 0x00001fff, 0x00000001},
            }},
            .xcr0 = 0x7,
        },
};

// EPYC 7742, Zen 2. InstLatx64/InstLatx64,
// AuthenticAMD/AuthenticAMD0830F10_K17_Rome_CPUID.txt, CPU #0. Leaf 7 has no subleaf 1.
inline constexpr RecordedCpu kRome = {
    .name = "zen2_rome",
    .leaves =
        {
            .leaf_0 = {0x00000010, 0x68747541, 0x444d4163, 0x69746e65},
            .leaf_1 = {0x00830f10, 0x00800800, 0x7ef8320b, 0x178bfbff},
            .leaf_7_0 = {0x00000000, 0x219c91a9, 0x00400004, 0x00000000},
            .leaf_7_1 = {},
            .leaf_80000000 = {0x80000020, 0x68747541, 0x444d4163, 0x69746e65},
            .leaf_80000001 = {0x00830f10, 0x40000000, 0x75c237ff, 0x2fd3fbff},
            .leaf_80000005 = {0xff40ff40, 0xff40ff40, 0x20080140, 0x20080140},
            .leaf_80000006 = {0x48006400, 0x68006400, 0x02006140, 0x08009140},
            .leaf_80000008 = {0x00003030, 0x018ef757, 0x0000707f, 0x00010000},
            .leaf_4 = {},
            .leaf_8000001d = {{
                {0x00004121, 0x01c0003f, 0x0000003f, 0x00000000},
                {0x00004122, 0x01c0003f, 0x0000003f, 0x00000000},
                {0x00004143, 0x01c0003f, 0x000003ff, 0x00000002},
                {0x0001c163, 0x03c0003f, 0x00003fff, 0x00000001},
            }},
            .xcr0 = 0x207,
        },
};

// Ryzen 9 5900X, Zen 3. InstLatx64/InstLatx64,
// AuthenticAMD/AuthenticAMD0A20F10_K19_Vermeer2_CPUID.txt, CPU #0. Leaf 7 has no subleaf 1.
inline constexpr RecordedCpu kVermeer = {
    .name = "zen3_vermeer",
    .leaves =
        {
            .leaf_0 = {0x00000010, 0x68747541, 0x444d4163, 0x69746e65},
            .leaf_1 = {0x00a20f10, 0x00180800, 0x7ed8320b, 0x178bfbff},
            .leaf_7_0 = {0x00000000, 0x219c97a9, 0x0040068c, 0x00000010},
            .leaf_7_1 = {},
            .leaf_80000000 = {0x80000023, 0x68747541, 0x444d4163, 0x69746e65},
            .leaf_80000001 = {0x00a20f10, 0x20000000, 0x75c237ff, 0x2fd3fbff},
            .leaf_80000005 = {0xff40ff40, 0xff40ff40, 0x20080140, 0x20080140},
            .leaf_80000006 = {0x48002200, 0x68004200, 0x02006140, 0x02009140},
            .leaf_80000008 = {0x00003030, 0x111ef657, 0x00005017, 0x00010000},
            .leaf_4 = {},
            .leaf_8000001d = {{
                {0x00004121, 0x01c0003f, 0x0000003f, 0x00000000},
                {0x00004122, 0x01c0003f, 0x0000003f, 0x00000000},
                {0x00004143, 0x01c0003f, 0x000003ff, 0x00000002},
                {0x0002c163, 0x03c0003f, 0x00007fff, 0x00000001},
            }},
            .xcr0 = 0x207,
        },
};

// EPYC 9654, Zen 4. InstLatx64/InstLatx64,
// AuthenticAMD/AuthenticAMD0A10F11_K19_Genoa_01_CPUID.txt, CPU #0.
inline constexpr RecordedCpu kGenoa = {
    .name = "zen4_genoa",
    .leaves =
        {
            .leaf_0 = {0x00000010, 0x68747541, 0x444d4163, 0x69746e65},
            .leaf_1 = {0x00a10f11, 0x00c00800, 0x7efa320b, 0x178bfbff},
            .leaf_7_0 = {0x00000001, 0xf1bf97a9, 0x00415fce, 0x10000010},
            .leaf_7_1 = {0x00000020, 0x00000000, 0x00000000, 0x00000000},
            .leaf_80000000 = {0x80000028, 0x68747541, 0x444d4163, 0x69746e65},
            .leaf_80000001 = {0x00a10f11, 0x40000000, 0x75c237ff, 0x2fd3fbff},
            .leaf_80000005 = {0xff48ff40, 0xff48ff40, 0x20080140, 0x20080140},
            .leaf_80000006 = {0x5c002200, 0x6c004200, 0x04006140, 0x0c009140},
            .leaf_80000008 = {0x00003934, 0x79bef25f, 0x000080bf, 0x00010007},
            .leaf_4 = {},
            .leaf_8000001d = {{
                {0x00004121, 0x01c0003f, 0x0000003f, 0x00000000},
                {0x00004122, 0x01c0003f, 0x0000003f, 0x00000000},
                {0x00004143, 0x01c0003f, 0x000007ff, 0x00000002},
                {0x0003c163, 0x03c0003f, 0x00007fff, 0x00000001},
            }},
            .xcr0 = 0x2e7,
        },
};

// EPYC 9655, Zen 5, with one thread a core and 64 of its 96 cores. InstLatx64/InstLatx64,
// AuthenticAMD/AuthenticAMD0B00F21_K20_Turin_01_CPUID.txt, CPU #0.
inline constexpr RecordedCpu kTurin = {
    .name = "zen5_turin",
    .leaves =
        {
            .leaf_0 = {0x00000010, 0x68747541, 0x444d4163, 0x69746e65},
            .leaf_1 = {0x00b00f21, 0x00400800, 0x7efa320b, 0x178bfbff},
            .leaf_7_0 = {0x00000001, 0xf1bf97ab, 0x19415fce, 0x10000110},
            .leaf_7_1 = {0x00000030, 0x00000000, 0x00000000, 0x00000000},
            .leaf_80000000 = {0x80000028, 0x68747541, 0x444d4163, 0x69746e65},
            .leaf_80000001 = {0x00b00f21, 0x40000000, 0x75c237ff, 0x2fd3fbff},
            .leaf_80000005 = {0xff60ff40, 0xff60ff40, 0x300c0140, 0x20080140},
            .leaf_80000006 = {0x40802040, 0x60804040, 0x04008140, 0x08009140},
            .leaf_80000008 = {0x00003934, 0x79bef25f, 0x0000703f, 0x00010007},
            .leaf_4 = {},
            .leaf_8000001d = {{
                {0x00000121, 0x02c0003f, 0x0000003f, 0x00000000},
                {0x00000122, 0x01c0003f, 0x0000003f, 0x00000000},
                {0x00000143, 0x03c0003f, 0x000003ff, 0x00000002},
                {0x0001c163, 0x03c0003f, 0x00007fff, 0x00000001},
            }},
            .xcr0 = 0x2e7,
        },
};

// Phenom II X4 940, K10, from before TOPOEXT. InstLatx64/InstLatx64,
// AuthenticAMD/AuthenticAMD0100F42_K10_Deneb_CPUID.txt, CPU #0. Its highest leaves are 5 and
// 8000001b; no leaf 0dh, so XCR0 is 0.
inline constexpr RecordedCpu kDeneb = {
    .name = "k10_deneb",
    .leaves =
        {
            .leaf_0 = {0x00000005, 0x68747541, 0x444d4163, 0x69746e65},
            .leaf_1 = {0x00100f42, 0x00040800, 0x00802009, 0x178bfbff},
            .leaf_7_0 = {},
            .leaf_7_1 = {},
            .leaf_80000000 = {0x8000001b, 0x68747541, 0x444d4163, 0x69746e65},
            .leaf_80000001 = {0x00100f42, 0x10001a86, 0x000037ff, 0xefd3fbff},
            .leaf_80000005 = {0xff30ff10, 0xff30ff20, 0x40020140, 0x40020140},
            .leaf_80000006 = {0x20800000, 0x42004200, 0x02008140, 0x0030b140},
            .leaf_80000008 = {0x00003030, 0x00000000, 0x00002003, 0x00000000},
            .leaf_4 = {},
            .leaf_8000001d = {},
            .xcr0 = 0,
        },
};

// Xeon Silver 4108. InstLatx64/InstLatx64,
// GenuineIntel/GenuineIntel0050654_SkylakeXeon_CPUID8.txt, CPU #0. Leaf 7 has no subleaf 1.
inline constexpr RecordedCpu kSkylakeSp = {
    .name = "skylake_sp",
    .leaves =
        {
            .leaf_0 = {0x00000016, 0x756e6547, 0x6c65746e, 0x49656e69},
            .leaf_1 = {0x00050654, 0x00100800, 0x7ffefbff, 0xbfebfbff},
            .leaf_7_0 = {0x00000000, 0xd39ffffb, 0x00000008, 0x00000000},
            .leaf_7_1 = {},
            .leaf_80000000 = {0x80000008, 0x00000000, 0x00000000, 0x00000000},
            .leaf_80000001 = {0x00000000, 0x00000000, 0x00000121, 0x2c100000},
            .leaf_80000005 = {},
            .leaf_80000006 = {0x00000000, 0x00000000, 0x01006040, 0x00000000},
            .leaf_80000008 = {0x0000302e, 0x00000000, 0x00000000, 0x00000000},
            .leaf_4 = {{
                {0x1c004121, 0x01c0003f, 0x0000003f, 0x00000000},
                {0x1c004122, 0x01c0003f, 0x0000003f, 0x00000000},
                {0x1c004143, 0x03c0003f, 0x000003ff, 0x00000000},
                {0x1c03c163, 0x0280003f, 0x00003fff, 0x00000004},
            }},
            .leaf_8000001d = {},
            .xcr0 = 0x2ff,
        },
};

// Core i7-1065G7, Ice Lake client. InstLatx64/InstLatx64,
// GenuineIntel/GenuineIntel00706E5_IceLakeY_CPUID.txt, CPU #0. Leaf 7 has no subleaf 1.
inline constexpr RecordedCpu kIceLake = {
    .name = "ice_lake",
    .leaves =
        {
            .leaf_0 = {0x0000001b, 0x756e6547, 0x6c65746e, 0x49656e69},
            .leaf_1 = {0x000706e5, 0x00100800, 0x7ffafbbf, 0xbfebfbff},
            .leaf_7_0 = {0x00000000, 0xf2bf27ef, 0x40405f4e, 0xbc000410},
            .leaf_7_1 = {},
            .leaf_80000000 = {0x80000008, 0x00000000, 0x00000000, 0x00000000},
            .leaf_80000001 = {0x00000000, 0x00000000, 0x00000121, 0x2c100000},
            .leaf_80000005 = {},
            .leaf_80000006 = {0x00000000, 0x00000000, 0x01006040, 0x00000000},
            .leaf_80000008 = {0x00003027, 0x00000000, 0x00000000, 0x00000000},
            .leaf_4 = {{
                {0x1c004121, 0x02c0003f, 0x0000003f, 0x00000000},
                {0x1c004122, 0x01c0003f, 0x0000003f, 0x00000000},
                {0x1c004143, 0x01c0003f, 0x000003ff, 0x00000000},
                {0x1c03c163, 0x03c0003f, 0x00001fff, 0x00000006},
            }},
            .leaf_8000001d = {},
            .xcr0 = 0x2e7,
        },
};

// Xeon Platinum 8370C, Ice Lake-SP, as a virtual machine of Azure (F72s_v2) sees it: FSRM is
// hidden. Output of "cpuid -r" in a message to the linux-kernel list of 31 July 2023, thread
// "x86/cpu: Provide cpu_init/parse_topology()". Leaf 7 has no subleaf 1.
inline constexpr RecordedCpu kIceLakeSpGuest = {
    .name = "ice_lake_sp_guest",
    .leaves =
        {
            .leaf_0 = {0x00000015, 0x756e6547, 0x6c65746e, 0x49656e69},
            .leaf_1 = {0x000606a6, 0x00400800, 0xfeda3223, 0x1f8bfbff},
            .leaf_7_0 = {0x00000000, 0xd09f2fb9, 0x00000000, 0x00000400},
            .leaf_7_1 = {},
            .leaf_80000000 = {0x80000008, 0x00000000, 0x00000000, 0x00000000},
            .leaf_80000001 = {0x00000000, 0x00000000, 0x00000121, 0x2c100800},
            .leaf_80000005 = {},
            .leaf_80000006 = {0x00000000, 0x00000000, 0x01006040, 0x00000000},
            .leaf_80000008 = {0x0000302e, 0x00000000, 0x00000000, 0x00000000},
            .leaf_4 = {{
                {0x7c004121, 0x02c0003f, 0x0000003f, 0x00000000},
                {0x7c004122, 0x01c0003f, 0x0000003f, 0x00000000},
                {0x7c004143, 0x04c0003f, 0x000003ff, 0x00000000},
                {0x7c0fc163, 0x02c0003f, 0x0000ffff, 0x00000000},
            }},
            .leaf_8000001d = {},
            .xcr0 = 0xe7,
        },
};

// Xeon w9-3475X, Sapphire Rapids with the family and model of the SP parts. anrieff/libcpuid,
// tests/intel/x86-64/golden-cove/sapphire-rapids-ws-xeon-w9.test, CPU #0.
inline constexpr RecordedCpu kSapphireRapids = {
    .name = "sapphire_rapids",
    .leaves =
        {
            .leaf_0 = {0x00000020, 0x756e6547, 0x6c65746e, 0x49656e69},
            .leaf_1 = {0x000806f8, 0x00800800, 0x7ffefbff, 0xbfebfbff},
            .leaf_7_0 = {0x00000002, 0xf3bfbffb, 0xbb417fee, 0xffdd4430},
            .leaf_7_1 = {0x00001c30, 0x00000000, 0x00000000, 0x00000000},
            .leaf_80000000 = {0x80000008, 0x00000000, 0x00000000, 0x00000000},
            .leaf_80000001 = {0x00000000, 0x00000000, 0x00000121, 0x2c100000},
            .leaf_80000005 = {},
            .leaf_80000006 = {0x00000000, 0x00000000, 0x08007040, 0x00000000},
            .leaf_80000008 = {0x0000392e, 0x00000200, 0x00000000, 0x00000000},
            .leaf_4 = {{
                {0xfc004121, 0x02c0003f, 0x0000003f, 0x00000000},
                {0xfc004122, 0x01c0003f, 0x0000003f, 0x00000000},
                {0xfc004143, 0x03c0003f, 0x000007ff, 0x00000000},
                {0xfc1fc163, 0x0380003f, 0x00015fff, 0x00000004},
            }},
            .leaf_8000001d = {},
            .xcr0 = 0x602e7,
        },
};

// Core i9-12900K, a performance core. InstLatx64/InstLatx64,
// GenuineIntel/GenuineIntel0090672_AlderLake_LC_BC_CPUID01.txt, CPU #0.
inline constexpr RecordedCpu kAlderLakeP = {
    .name = "alder_lake_p",
    .leaves =
        {
            .leaf_0 = {0x00000020, 0x756e6547, 0x6c65746e, 0x49656e69},
            .leaf_1 = {0x00090672, 0x00800800, 0x7ffafbff, 0xbfebfbff},
            .leaf_7_0 = {0x00000001, 0x239ca7eb, 0x98c027ac, 0xfc1cc410},
            .leaf_7_1 = {0x00400810, 0x00000000, 0x00000000, 0x00000000},
            .leaf_80000000 = {0x80000008, 0x00000000, 0x00000000, 0x00000000},
            .leaf_80000001 = {0x00000000, 0x00000000, 0x00000121, 0x2c100000},
            .leaf_80000005 = {},
            .leaf_80000006 = {0x00000000, 0x00000000, 0x05007040, 0x00000000},
            .leaf_80000008 = {0x0000302e, 0x00000000, 0x00000000, 0x00000000},
            .leaf_4 = {{
                {0xfc004121, 0x02c0003f, 0x0000003f, 0x00000000},
                {0xfc004122, 0x01c0003f, 0x0000003f, 0x00000000},
                {0xfc01c143, 0x0240003f, 0x000007ff, 0x00000000},
                {0xfc1fc163, 0x02c0003f, 0x00009fff, 0x00000004},
            }},
            .leaf_8000001d = {},
            .xcr0 = 0x207,
        },
};

// An efficient core of the same, CPU #18 of the file.
inline constexpr RecordedCpu kAlderLakeE = {
    .name = "alder_lake_e",
    .leaves =
        {
            .leaf_0 = {0x00000020, 0x756e6547, 0x6c65746e, 0x49656e69},
            .leaf_1 = {0x00090672, 0x44800800, 0x7ffafbff, 0xbfebfbff},
            .leaf_7_0 = {0x00000001, 0x239ca7eb, 0x98c027ac, 0xfc1cc410},
            .leaf_7_1 = {0x00400810, 0x00000000, 0x00000000, 0x00000000},
            .leaf_80000000 = {0x80000008, 0x00000000, 0x00000000, 0x00000000},
            .leaf_80000001 = {0x00000000, 0x00000000, 0x00000121, 0x2c100000},
            .leaf_80000005 = {},
            .leaf_80000006 = {0x00000000, 0x00000000, 0x08008040, 0x00000000},
            .leaf_80000008 = {0x0000302e, 0x00000000, 0x00000000, 0x00000000},
            .leaf_4 = {{
                {0xfc004121, 0x01c0003f, 0x0000003f, 0x00000000},
                {0xfc004122, 0x01c0003f, 0x0000007f, 0x00000000},
                {0xfc01c143, 0x03c0003f, 0x000007ff, 0x00000000},
                {0xfc1fc163, 0x02c0003f, 0x00009fff, 0x00000004},
            }},
            .leaf_8000001d = {},
            .xcr0 = 0x207,
        },
};

// The default CPU of QEMU, on no CPU in particular. Read in qemu-x86_64 7.2.22 with -cpu qemu64.
// OSXSAVE is not set, so there is no XCR0. The highest leaves are 0dh and 8000000a; leaf 7 is all
// 0.
inline constexpr RecordedCpu kQemu64 = {
    .name = "qemu64",
    .leaves =
        {
            .leaf_0 = {0x0000000d, 0x68747541, 0x444d4163, 0x69746e65},
            .leaf_1 = {0x00060fb1, 0x00000800, 0x80002001, 0x078bfbfd},
            .leaf_7_0 = {},
            .leaf_7_1 = {},
            .leaf_80000000 = {0x8000000a, 0x68747541, 0x444d4163, 0x69746e65},
            .leaf_80000001 = {0x00060fb1, 0x00000000, 0x00000005, 0x2193fbfd},
            .leaf_80000005 = {0x01ff01ff, 0x01ff01ff, 0x40020140, 0x40020140},
            .leaf_80000006 = {0x00000000, 0x42004200, 0x02008140, 0x00808140},
            .leaf_80000008 = {0x00003028, 0x00000000, 0x00000000, 0x00000000},
            .leaf_4 = {},
            .leaf_8000001d = {},
            .xcr0 = 0,
        },
};

// QEMU's CPU for guests that move between hosts. Read in the same way with -cpu kvm64.
inline constexpr RecordedCpu kKvm64 = {
    .name = "kvm64",
    .leaves =
        {
            .leaf_0 = {0x0000000d, 0x756e6547, 0x6c65746e, 0x49656e69},
            .leaf_1 = {0x00000f61, 0x00000800, 0x80002001, 0x078bfbfd},
            .leaf_7_0 = {},
            .leaf_7_1 = {},
            .leaf_80000000 = {0x80000008, 0x756e6547, 0x6c65746e, 0x49656e69},
            .leaf_80000001 = {0x00000f61, 0x00000000, 0x00000000, 0x20100800},
            .leaf_80000005 = {0x01ff01ff, 0x01ff01ff, 0x40020140, 0x40020140},
            .leaf_80000006 = {0x00000000, 0x42004200, 0x02008140, 0x00808140},
            .leaf_80000008 = {0x00003028, 0x00000000, 0x00000000, 0x00000000},
            .leaf_4 = {{
                {0x00000121, 0x01c0003f, 0x0000003f, 0x00000001},
                {0x00000122, 0x01c0003f, 0x0000003f, 0x00000001},
                {0x00000143, 0x03c0003f, 0x00000fff, 0x00000001},
                {0x00000163, 0x03c0003f, 0x00003fff, 0x00000006},
            }},
            .leaf_8000001d = {},
            .xcr0 = 0,
        },
};

inline constexpr std::array kRecordedCpus = {
    kNaples,  kRome,           kVermeer,        kGenoa,      kTurin,      kDeneb,  kSkylakeSp,
    kIceLake, kIceLakeSpGuest, kSapphireRapids, kAlderLakeP, kAlderLakeE, kQemu64, kKvm64};

}  // namespace pagetide

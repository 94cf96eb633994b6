// A small seeded generator (mulberry32), so that a run can be repeated.
export class Random {
  constructor(seed) { this.state = seed >>> 0; }
  next() {
    let t = (this.state = (this.state + 0x6d2b79f5) >>> 0);
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }
  below(n) { return Math.floor(this.next() * n); }
  pick(list) { return list[this.below(list.length)]; }
}

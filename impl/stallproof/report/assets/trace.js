"use strict";
// Records and block places at a position. Chunks are decompressed when they are first needed; each begins
// with the places of all blocks that are not free, and every record carries the blocks it moved.
SP.Trace = class {
  constructor(info) {
    this.info = info;
    this.chunks = new Map();
    this.now = null;
  }

  chunk(k) {
    if (!this.chunks.has(k)) {
      if (this.chunks.size > 12) this.chunks.delete(this.chunks.keys().next().value);
      this.chunks.set(k, SP.json("records-" + k));
    }
    return this.chunks.get(k);
  }

  // {record, moved, places: Map(block -> [place, lane]), before: the same map ahead of the record's moves}
  async at(p) {
    const starts = this.info.chunks;
    if (!starts.length) return null;
    const k = SP.after(starts, p, 0, starts.length) - 1;
    const chunk = await this.chunk(k);
    const index = SP.clamp(p - chunk.from, 0, chunk.rec.length - 1);
    if (!this.now || this.now.k !== k || this.now.index > index) {
      const places = new Map();
      for (let i = 0; i < chunk.key.length; i += 3) places.set(chunk.key[i], [chunk.key[i + 1], chunk.key[i + 2]]);
      this.now = {k, index: -1, places};
    }
    const {now} = this;
    let moved = [];
    while (now.index < index) {
      now.index++;
      const flat = chunk.rec[now.index][1];
      moved = [];
      for (let i = 0; i < flat.length; i += 3) {
        moved.push(flat[i]);
        now.places.set(flat[i], [flat[i + 1], flat[i + 2]]);
      }
    }
    const flat = chunk.rec[index][1];
    if (!moved.length) for (let i = 0; i < flat.length; i += 3) moved.push(flat[i]);
    return {record: chunk.rec[index][0], moved, places: now.places};
  }
};

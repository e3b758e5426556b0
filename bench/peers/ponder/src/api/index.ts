// Ponder wants one; nothing is asked of it here.
import { Hono } from "hono";

export default new Hono();

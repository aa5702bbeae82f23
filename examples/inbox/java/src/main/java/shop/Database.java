package shop;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;

final class Database {
    /** A connection whose transaction the caller commits. Closing it before rolls back. A pool of connections is faster. */
    static Connection connect() throws SQLException {
        var database = DriverManager.getConnection(System.getenv("JDBC_DATABASE_URL"));
        database.setAutoCommit(false);
        return database;
    }

    /** The first row of the result. */
    static ResultSet ask(Connection database, String sql, Object... values) throws SQLException {
        var statement = database.prepareStatement(sql);
        statement.closeOnCompletion();
        for (int n = 0; n < values.length; n++) statement.setObject(n + 1, values[n]);
        var row = statement.executeQuery();
        row.next();
        return row;
    }
}
